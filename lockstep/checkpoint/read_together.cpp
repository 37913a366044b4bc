#include "lockstep/checkpoint/read_together.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "lockstep/checkpoint/folder/together.h"
#include "lockstep/checkpoint/formats/tied_names.h"
#include "lockstep/checkpoint/saved_values.h"
#include "lockstep/checkpoint/tables/saved_table_reader.h"
#include "lockstep/checkpoint/take_image.h"
#include "lockstep/comm/agreement.h"
#include "lockstep/comm/rounds.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/strategy/strategy_access.h"

namespace lockstep::internal::inline checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr const char* kCall = "Checkpoint::restore";

class FirstWholeReader {
 public:
  FirstWholeReader(const Strategy& strategy, Files& files, const RestoreOptions& options, const NeededBytes& needed,
                   const ListFolders& list_again)
      : strategy_(strategy),
        files_(files),
        options_(options),
        needed_(needed),
        list_again_(list_again),
        passes_over_(options.allow_unexpected && !options.restore_on_create) {
    here_tied_.add(other_names_of(strategy));
    if (!passes_over_) return;
    for (const StateItem& item : strategy.state_items()) here_.emplace(kind_text(item.kind), item.name);
  }

  NamedImage first_whole(std::vector<fs::path> folders) {
    folders_ = std::move(folders);
    while (true) {
      const auto [text, path] = next_on_all();
      const std::string what = fmt::format("the checkpoint '{}'", path);
      const Manifest manifest = decode_manifest(text, what);
      tied_ = here_tied_;
      tied_.add(manifest.run.other_names);
      const bool all_see = texts_of_all(strategy_, opens_the_same(text, path) ? "" : "no").empty();
      std::optional<Image> image;
      if (all_see) {
        image = where_all_can([&] {
          Image loaded = load_image(*reader_, wanted(), read_here(manifest), needed_);
          if (const ServedState* served = served_state_of(strategy_))
            loaded.read_tables = read_tables(*reader_, *served, wanted());
          return loaded;
        });
      } else {
        image = from_chief(manifest);
      }
      reader_.reset();
      if (!image) continue;
      if (first_ && strategy_.is_chief()) {
        log(LogLevel::kWarning, fmt::format("{} is restored instead: {}", what, message_of(first_)));
      }
      return {std::move(*image), what};
    }
  }

 private:
  using Reads = std::function<bool(const RecordedTensor&)>;

  /// A manifest and its folder.
  using Opened = std::pair<std::string, std::string>;

  /// The next one that the chief can open, on all workers. Throws the first error where none is left.
  Opened next_on_all() {
    auto [opened, is_left, first_text] = strategy_.on_chief([&] {
      std::optional<Opened> found = open_next();
      const bool has_found = found.has_value();
      return std::tuple(std::move(found).value_or(Opened()), has_found,
                        first_ ? text_of_failure(strategy_, kCall, first_) : std::string());
    });
    if (!first_ && !first_text.empty()) keep_other(first_text);
    if (!is_left) std::rethrow_exception(first_);
    return opened;
  }

  /// Of the chief.
  std::optional<Opened> open_next() {
    while (next_ < folders_.size() || find_newer()) {
      const fs::path& folder = folders_[next_++];
      try {
        reader_.emplace(files_, folder);
        return Opened(encode_manifest(reader_->manifest()), folder.string());
      } catch (const DataError& error) {
        if (!says_of_file(error)) throw;
        keep(std::current_exception());
      }
    }
    return std::nullopt;
  }

  /// Another job may have made a new checkpoint since, and removed those that are known.
  bool find_newer() {
    constexpr int kMostLists = 20;
    if (!list_again_ || ++lists_ > kMostLists) return false;
    try {
      for (const fs::path& one : list_again_()) {
        if (std::find(folders_.begin(), folders_.end(), one) == folders_.end()) folders_.push_back(one);
      }
    } catch (const DataError&) {
      keep(std::current_exception());
    }
    return next_ < folders_.size();
  }

  /// Opens the checkpoint that the chief has opened; whether this is it.
  bool opens_the_same(const std::string& manifest, const std::string& path) {
    if (strategy_.is_chief()) return true;
    try {
      reader_.emplace(files_, path);
      return encode_manifest(reader_->manifest()) == manifest;
    } catch (const std::exception&) {
      return false;  // who cannot look at it does not see it
    }
  }

  /// What `read` gives, unless it has found damage on any worker.
  std::optional<Image> where_all_can(const std::function<Image()>& read) {
    std::optional<Image> image;
    std::exception_ptr damage;
    all_or_none(strategy_, kCall, [&] {
      try {
        image = read();
      } catch (const DataError& error) {
        if (!says_of_file(error)) throw;
        damage = std::current_exception();
      }
    });
    const std::string found = texts_of_all(strategy_, damage ? text_of_failure(strategy_, kCall, damage) : "");
    if (found.empty()) return image;
    if (damage) keep(damage);
    if (!damage) keep_other(found);
    return std::nullopt;
  }

  /// The chief reads, and sends the tensors, and which of the manifest's they are.
  std::optional<Image> from_chief(const Manifest& manifest) {
    const auto [chosen, tensors, is_whole] = strategy_.on_chief([&] {
      std::vector<std::tuple<std::string, std::string, int64_t, bool>> ids;  // the last: whether it has a value
      std::vector<at::Tensor> values;
      try {
        for (ImageTensor& one :
             load_image(*reader_, wanted(), [&](const RecordedTensor& tensor) { return has_place(tensor); }).tensors) {
          ids.emplace_back(std::move(one.kind), std::move(one.name), one.replica, one.value.defined());
          if (one.value.defined()) values.push_back(std::move(one.value));
        }
      } catch (const DataError& error) {
        if (!says_of_file(error)) throw;
        keep(std::current_exception());
        return std::tuple(std::move(ids), std::move(values), false);
      }
      return std::tuple(std::move(ids), std::move(values), true);
    });
    if (!is_whole) return std::nullopt;
    Image image{.run = manifest.run};
    std::size_t next = 0;
    for (const auto& [kind, name, replica, has_value] : chosen) {
      image.tensors.push_back({kind, name, replica, has_value ? tensors.at(next++) : at::Tensor()});
    }
    return image;
  }

  std::function<bool(const std::string&)> wanted() const {
    return [this](const std::string& name) { return tied_.are_wanted(options_.only, name); };
  }
  bool has_place(const RecordedTensor& one) const {
    if (!passes_over_) return true;
    const std::vector<std::string> names = tied_.all(one.name);
    return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return here_.contains({one.kind, name});
    });
  }
  Reads read_here(const Manifest& manifest) const {
    const ReplicaBlock block = StrategyAccess::group(strategy_).block();
    const bool is_dealt_anew = manifest.run.replicas != block.all;
    return [this, block, is_dealt_anew](const RecordedTensor& one) {
      return has_place(one) && (one.replica < 0 || is_dealt_anew || block.has(one.replica));
    };
  }

  void keep(std::exception_ptr error) {
    if (!first_) first_ = std::move(error);
  }

  void keep_other(const std::string& text) { keep(std::make_exception_ptr(error_of_first_failure(strategy_, text))); }

  const Strategy& strategy_;
  Files& files_;
  const RestoreOptions& options_;
  const NeededBytes& needed_;
  const ListFolders& list_again_;
  const bool passes_over_;         // what the program has no place for, without reading it
  std::set<KindAndName> here_;     // what it has, where it matters
  TiedNames here_tied_;            // of the program
  TiedNames tied_;                 // and of the checkpoint that is looked at
  std::vector<fs::path> folders_;  // of the chief, as the next two
  std::size_t next_ = 0;           // the first that was not tried
  int lists_ = 0;
  std::optional<CheckpointReader> reader_;
  std::exception_ptr first_;  // why the first folder was passed over
};

/// Workers that restored different things would go on as different programs.
void agree_on_options(const Strategy& strategy, const RestoreOptions& options) {
  Rounds& rounds = StrategyAccess::rounds(strategy);
  rounds.begin();  // forgets a failure of before: a restore is what a program may do about it
  agree_on_call(rounds, {.call = kCall, .step = strategy.step()}, [&](Proposal& mine) {
    mine.name = mine.detail = fmt::format(
        "{}(.allow_missing = {}, .allow_unexpected = {}, .allow_other_replicas = {}, .only = {{{}}}, "
        ".restore_on_create = {})",
        kCall, options.allow_missing, options.allow_unexpected, options.allow_other_replicas,
        fmt::join(options.only, ", "), options.restore_on_create);
  });
}

}  // namespace

NamedImage read_first_whole(const Strategy& strategy, Files& files, const std::vector<fs::path>& folders,
                            const RestoreOptions& options, const NeededBytes& needed, const ListFolders& list_again) {
  agree_on_options(strategy, options);
  return FirstWholeReader(strategy, files, options, needed, list_again).first_whole(folders);
}

}  // namespace lockstep::internal::checkpoint
