// Evaluations, validations and predictions look at whole data sets, and leave no trace in them.
#include "tests/support/autocast.h"
#include "tests/support/scratch_folder.h"
#include "tests/train/fits.h"

namespace lockstep::testing {

namespace {

constexpr int64_t kSamples = 13;

/// The samples in an order of their own, as a data set or as a stream.
DistributedDataset samples(Strategy& strategy, bool is_stream, Remainder remainder = Remainder::kKeep) {
  const Dataset all = data::from_tensors(inputs(kSamples), classes(kSamples));
  const DistributeOptions options{.global_batch = 4, .shuffle = true, .remainder = remainder};
  return is_stream ? strategy.distribute(data::from_dataset(all), options) : strategy.distribute(all, options);
}

DistributedDataset endless(Strategy& strategy) {
  return strategy.distribute(data::from_dataset(data::from_tensors(inputs(5), classes(5))).repeat(),
                             {.global_batch = 4});
}

int64_t steps_in(const DistributedDataset& data, int64_t epoch) {
  int64_t steps = 0;
  for (const auto& batch : data.epoch(epoch)) steps += batch.size() > 0 ? 1 : 0;
  return steps;
}

/// A metric that throws where it is asked to.
MetricSpec throwing_spec(const bool& throws) {
  return metrics::mean("throwing", [&throws](const torch::Tensor& output, const Batch&) -> torch::Tensor {
    if (throws) throw std::runtime_error("as asked");
    return output.mean();
  });
}

/// An own step that is what the Trainer does by itself, without clipping.
auto own_step(const Setting& setting) {
  return [&setting](ReplicaContext& ctx, const Batch& part) {
    const torch::Tensor output = setting.model(ctx)->forward(part.input);
    const torch::Tensor mean = cross_entropy(output, part);
    ctx.scale_loss(mean).backward();
    setting.optimizer.step(ctx);
    return mean.detach();
  };
}

const std::vector<WorkersCase> kCases{{1, 2, 1}, {2, 2, 1}};

}  // namespace

TEST(Looks, LeaveThePlaceInTheData) {
  for (const WorkersCase& one : kCases) {
    for (const bool is_stream : {false, true}) {
      run_workers(one, [&](Strategy& strategy) {
        const Setting setting(strategy);
        const DistributedDataset data = samples(strategy, is_stream);
        int64_t steps = 0;
        for (const auto& batch : data.epoch(0)) {
          strategy.run(batch, [](ReplicaContext&, const Batch&) {});
          if (++steps == 2) break;
        }
        const data::Cursor before = data.cursor();
        const std::vector<data::LedgerEntry> used = data.ledger();
        Trainer trainer = setting.trainer();
        const Logs logs = trainer.evaluate(data);
        EXPECT_EQ(trainer.predict(data).size(0), kSamples) << one;
        EXPECT_EQ(data.cursor(), before) << one << ", stream " << is_stream;
        EXPECT_EQ(before.position, 8);
        EXPECT_EQ(data.ledger().front().samples, used.front().samples);
        data.seek(before);
        EXPECT_EQ(trainer.evaluate(data), logs) << one << ", stream " << is_stream;
        EXPECT_EQ(steps_in(data, 0), 2) << "what is behind the place";
        return 0;
      });
    }
  }
}

TEST(Looks, OfAFitLeaveWholeEpochsToWhoeverComesNext) {
  for (const WorkersCase& one : kCases) {
    for (const bool is_stream : {false, true}) {
      run_workers(one, [&](Strategy& strategy) {
        const Setting setting(strategy);
        const DistributedDataset data = samples(strategy, is_stream);
        const FitOptions options{.epochs = 1, .validation = data, .validate_every_steps = 2};
        Trainer first = setting.trainer();
        first.fit(data, options);
        EXPECT_EQ(data.cursor().position, kSamples);
        first.fit(data, options);
        EXPECT_EQ(first.status().step, 4);
        Trainer second = setting.trainer();
        second.fit(data, options);
        EXPECT_EQ(second.status().step, 4);
        second.fit(data, {.epochs = 5, .initial_epoch = 3});
        EXPECT_EQ(second.status().step, 8);
        for (int64_t epoch = 0; epoch < 2; ++epoch) {
          EXPECT_EQ(steps_in(data, epoch), 4) << one << ", stream " << is_stream << ", epoch " << epoch;
        }
        return 0;
      });
    }
  }
}

class ResumedFit : public ScratchFolder {};

TEST_F(ResumedFit, LeavesWholeEpochsToWhoeverComesNext) {
  for (const bool is_stream : {false, true}) {
    const auto directory = path(is_stream ? "stream" : "set");
    for (const bool resumes : {false, true}) {
      run_workers({1, 2, 1}, [&](Strategy& strategy) {
        const Setting setting(strategy);
        const DistributedDataset data = samples(strategy, is_stream);
        Trainer trainer = setting.trainer();
        FitOptions options{.epochs = 1, .callbacks = {callbacks::checkpoints({.directory = directory})}};
        if (!resumes) options.steps = 2;
        trainer.fit(data, options);
        EXPECT_EQ(trainer.status().step, resumes ? 4 : 2);
        EXPECT_EQ(trainer.status().is_resumed, resumes);
        Trainer next = setting.trainer();
        next.fit(data, {.epochs = 1});
        EXPECT_EQ(next.status().step, 4) << "resumed " << resumes << ", stream " << is_stream;
        EXPECT_EQ(steps_in(data, 0), 4);
        return 0;
      });
    }
  }
}

TEST(Looks, ThatThrowLeaveNoBatchBehind) {
  run_workers({1, 2, 1}, [](Strategy& strategy) {
    const Setting setting(strategy);
    bool throws = false;
    Trainer trainer = setting.trainer({.metrics = {throwing_spec(throws)}});
    trainer.fit(setting.train, {.epochs = 1});
    const data::Cursor before = setting.train.cursor();
    const Logs expected = trainer.evaluate(setting.train);
    throws = true;
    EXPECT_THROW(trainer.evaluate(setting.train), ReplicaError);
    throws = false;
    EXPECT_EQ(trainer.evaluate(setting.train), expected);
    EXPECT_EQ(setting.train.cursor(), before);
    for (const Finding& finding : strategy.findings()) EXPECT_NE(finding.code, "LS-BATCH-HELD");
    return 0;
  });
}

TEST(Looks, LeaveNoSampleOutWhateverTrainingDoes) {
  for (const WorkersCase& one : kCases) {
    for (const bool is_stream : {false, true}) {
      run_workers(one, [&](Strategy& strategy) {
        const Setting setting(strategy);
        Trainer trainer = setting.trainer();
        const DistributedDataset all = samples(strategy, is_stream);
        const DistributedDataset dropping = samples(strategy, is_stream, Remainder::kDrop);
        EXPECT_TRUE(torch::equal(trainer.predict(dropping), trainer.predict(all))) << one << ", stream " << is_stream;
        EXPECT_EQ(trainer.evaluate(dropping), trainer.evaluate(all)) << one << ", stream " << is_stream;
        EXPECT_EQ(steps_in(dropping, 0), 3);
        return 0;
      });
    }
  }
}

TEST(Looks, AtNothingGiveZeros) {
  run_workers({1, 2, 1}, [](Strategy& strategy) {
    const Setting setting(strategy);
    Trainer trainer = setting.trainer();
    const auto none = strategy.distribute(data::from_tensors(inputs(0), classes(0)), {.global_batch = 4});
    EXPECT_EQ(trainer.evaluate(none), (Logs{{"accuracy", 0}, {"largest", 0}, {"loss", 0}}));
    EXPECT_FALSE(trainer.predict(none).defined());
    return 0;
  });
}

TEST(Looks, AndFitsRefuseWhatNeverEnds) {
  run_workers({1, 2, 1}, [](Strategy& strategy) {
    const Setting setting(strategy);
    Trainer trainer = setting.trainer();
    const DistributedDataset data = endless(strategy);
    const auto refused = [](const auto& call, const char* who, const Where& where = Where::current()) {
      expect_error<UsageError>(call, "LS-STREAM", {who, "without end", "again and again"}, where);
    };
    refused([&] { trainer.fit(data, {.epochs = 1}); }, "Trainer::fit");
    refused([&] { trainer.fit(data); }, ".steps");
    refused([&] { trainer.fit(setting.train, {.validation = data}); }, "FitOptions::validation");
    refused([&] { trainer.evaluate(data); }, "Trainer::evaluate");
    refused([&] { trainer.predict(data); }, "Trainer::predict");
    EXPECT_EQ(strategy.step(), 0);
    trainer.fit(data, {.steps = 3});
    EXPECT_EQ(trainer.status().step, 3);
    trainer.fit(data, {.dry_run = true});
    EXPECT_EQ(trainer.fit(data, {.time = std::chrono::milliseconds(1)}).epochs().size(), 1u);
    return 0;
  });
}

TEST(Looks, OfATrainerWithoutLossAndMetricsAreRefused) {
  run_workers({1, 2, 1}, [](Strategy& strategy) {
    const Setting setting(strategy);
    Trainer trainer(strategy, setting.model, setting.optimizer, {.step = own_step(setting)});
    expect_error<UsageError>([&] { trainer.evaluate(setting.validation); }, "LS-OPTION",
                             {"Trainer::evaluate", ".loss", ".metrics"});
    expect_error<UsageError>([&] { trainer.fit(setting.train, {.validation = setting.validation}); }, "LS-OPTION",
                             {"FitOptions::validation", ".loss", ".metrics"});
    EXPECT_EQ(trainer.predict(setting.validation).size(0), 7);
    EXPECT_EQ(trainer.fit(setting.train, {.epochs = 1}).epochs().size(), 1u);
    Trainer with_metric(strategy, setting.model, setting.optimizer,
                        {.step = own_step(setting), .metrics = {accuracy_spec()}});
    const History history = with_metric.fit(setting.train, {.epochs = 1, .validation = setting.validation});
    EXPECT_EQ(history.epochs().front().count("val_accuracy"), 1u);
    return 0;
  });
}

TEST(Looks, AndFitsInAStepNameThemselves) {
  run_workers({1, 2, 1}, [](Strategy& strategy) {
    const Setting setting(strategy);
    Trainer trainer = setting.trainer();
    const auto refused = [&](const std::function<void()>& call, const char* who,
                             const Where& where = Where::current()) {
      const auto error = caught_from<ReplicaError>([&] { strategy.run([&](ReplicaContext&) { call(); }); }, where);
      const std::string text = error ? error->what() : "";
      for (const char* const part : {who, "LS-INSIDE-STEP", "call it when run() has returned"}) {
        if (text.find(part) == std::string::npos) fail_at(where, std::string("no '") + part + "' in: " + text);
      }
    };
    refused([&] { trainer.fit(setting.train); }, "Trainer::fit was called");
    refused([&] { trainer.evaluate(setting.validation); }, "Trainer::evaluate was called");
    refused([&] { trainer.predict(setting.validation); }, "Trainer::predict was called");
    return 0;
  });
}

TEST(OwnStep, RunsUnderAutocastWhereBFloat16IsAskedFor) {
  for (const WorkersCase& one : kCases) {
    const auto hand = run_workers(one, [](Strategy& strategy) {
      const Setting setting(strategy);
      const auto step = own_step(setting);
      for (const auto& batch : setting.train.epoch(0)) {
        strategy.run(batch, [&](ReplicaContext& ctx, const Batch& part) {
          set_autocast(true);
          step(ctx, part);
          set_autocast(false);
        });
      }
      return digest_of(setting);
    });
    const auto fitted = [&](Precision precision) {
      return run_workers(one, [&](Strategy& strategy) {
        const Setting setting(strategy);
        Trainer trainer(strategy, {.step = own_step(setting), .precision = precision});
        trainer.fit(setting.train, {.epochs = 1});
        return digest_of(setting);
      });
    };
    EXPECT_EQ(fitted(Precision::kBFloat16), hand) << one;
    EXPECT_NE(fitted(Precision::kFloat32), hand) << "autocast has changed nothing";
  }
}

}  // namespace lockstep::testing
