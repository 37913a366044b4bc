// Samples that are structs of the program's own, of different lengths: a function makes a Batch of those of a replica.
#include <torch/torch.h>

#include <algorithm>
#include <iostream>
#include <vector>

#include "lockstep/lockstep.h"

using lockstep::Batch;
using lockstep::ReplicaContext;
using torch::Tensor;

// [samples]
struct Sentence {
  std::vector<int64_t> words;
  bool is_question = false;
};

struct Sentences : torch::data::Dataset<Sentences, Sentence> {
  Sentence get(size_t i) override;
  torch::optional<size_t> size() const override { return 60; }
};

// The sentences of one replica, filled up with 0 to the longest of them.
Batch collate(const std::vector<Sentence>& sentences) {
  const auto count = static_cast<int64_t>(sentences.size());
  std::vector<int64_t> lengths;
  for (const auto& one : sentences) lengths.push_back(static_cast<int64_t>(one.words.size()));
  Batch batch{.input = torch::zeros({count, *std::max_element(lengths.begin(), lengths.end())}, torch::kLong),
              .target = torch::empty({count}),
              .more = {{"lengths", torch::tensor(lengths)}}};
  for (int64_t i = 0; i < count; ++i) {
    const Sentence& one = sentences[static_cast<size_t>(i)];
    batch.input[i].narrow(0, 0, lengths[static_cast<size_t>(i)]).copy_(torch::tensor(one.words));
    batch.target[i] = one.is_question ? 1.0 : 0.0;
  }
  return batch;
}
// [samples]

constexpr int64_t kQuestionMark = 9;

// Three to seven words; every third sentence is a question.
Sentence Sentences::get(size_t i) {
  Sentence sentence;
  for (size_t k = 0; k < 3 + i % 5; ++k) sentence.words.push_back(static_cast<int64_t>(1 + (7 * i + 3 * k) % 8));
  sentence.is_question = i % 3 == 0;
  if (sentence.is_question) sentence.words.back() = kQuestionMark;
  return sentence;
}

// The mean of the words' vectors, and one number of it.
struct Net : torch::nn::Module {
  Net() {
    register_module("words", words);
    register_module("out", out);
  }
  Tensor forward(const Tensor& sentences, const Tensor& lengths) {
    const Tensor is_word = (sentences != 0).unsqueeze(2);
    const Tensor sums = (words(sentences) * is_word).sum(1);
    return out(sums / lengths.unsqueeze(1)).squeeze(1);
  }
  torch::nn::Embedding words{10, 8};
  torch::nn::Linear out{8, 1};
};

int main() {
  torch::set_num_threads(1);
  // [distribute]
  lockstep::MirroredStrategy strategy({.replicas = 3, .seed = 1});
  auto model = strategy.make_module([] { return std::make_shared<Net>(); });
  auto optimizer = strategy.make_optimizer(model, torch::optim::AdamOptions(0.05));
  auto data = strategy.distribute(lockstep::data::from_torch(Sentences()),
                                  {.global_batch = 29, .shuffle = true, .prefetch = 2, .collate = collate});
  for (int64_t epoch = 0; epoch < 30; ++epoch) {
    for (const auto& batch : data.epoch(epoch)) {
      strategy.run(batch, [&](ReplicaContext& ctx, const Batch& part) {
        auto logits = model(ctx)->forward(part.input, part.more.at("lengths"));
        ctx.scale_loss(torch::binary_cross_entropy_with_logits(logits, part.target)).backward();
        optimizer.step(ctx);
      });
    }
  }
  // [distribute]

  int64_t right = 0;
  for (const auto& batch : data.epoch(0)) {
    if (right == 0) {
      for (const Batch& part : batch) {
        const auto longest = part.more.at("lengths").max().item<int64_t>();
        std::cout << part.size() << " of " << part.global_size
                  << " sentences, as wide as the longest of them: " << (part.input.size(1) == longest ? "yes" : "no")
                  << "\n";
      }
    } else if (batch[2].size() == 0) {
      std::cout << "a replica without sentences has the input " << batch[2].input.sizes() << "\n";
    }
    const auto counts = strategy.evaluate(batch, [&](ReplicaContext& ctx, const Batch& part) {
      auto logits = model(ctx)->forward(part.input, part.more.at("lengths"));
      return ((logits > 0) == (part.target > 0.5)).sum();
    });
    right += strategy.reduce(lockstep::Reduction::kSum, counts).item<int64_t>();
  }
  std::cout << "right: " << right << " of " << data.size() << "\n";
}
