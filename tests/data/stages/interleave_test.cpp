// Streams that are read in turn: tf.data's order, and cursors in it.
#include "lockstep/data/stages/interleave.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/data/stream.h"
#include "tests/data/records_in_memory.h"
#include "tests/support/errors.h"

namespace lockstep {
namespace {

using testing::expect_error;
using testing::targets_of;
using Numbers = std::vector<int64_t>;

Numbers order_of(const Stream& stream) { return targets_of(stream.read_all()); }

/// Numbers from 0.
Stream up_to_number(int64_t count) {
  return data::from_dataset(data::from_tensors(torch::zeros({count, 1}), torch::arange(count)));
}

/// tf.data's order by its own algorithm: cycle_length places, each with a stream or none. Streams have so many
/// elements; an element is its stream's number.
Numbers order_of_tf_data(const std::vector<int64_t>& sizes, const data::InterleaveOptions& options) {
  std::vector<std::optional<int64_t>> current(static_cast<std::size_t>(options.cycle_length));
  std::vector<int64_t> left = sizes;
  Numbers order;
  std::size_t cycle = 0;
  std::size_t next = 0;
  int64_t block = 0;
  bool end_of_input = false;
  const auto advance = [&] {
    block = 0;
    cycle = (cycle + 1) % current.size();
  };
  while (!end_of_input ||
         std::any_of(current.begin(), current.end(), [](const auto& one) { return one.has_value(); })) {
    if (current[cycle]) {
      int64_t& rest = left[static_cast<std::size_t>(*current[cycle])];
      if (rest > 0) {
        --rest;
        order.push_back(*current[cycle]);
        if (++block == options.block_length) advance();
      } else {
        current[cycle].reset();
        advance();
      }
    } else if (!end_of_input) {
      end_of_input = next == sizes.size();
      if (!end_of_input) current[cycle] = static_cast<int64_t>(next++);
    } else {
      advance();
    }
  }
  return order;
}

Stream named_elements(int64_t name, int64_t count) {
  return data::from_dataset(
      data::from_tensors(torch::full({count, 1}, name, torch::kFloat), torch::full({count}, name, torch::kLong)));
}

std::vector<Stream> named_streams(const std::vector<int64_t>& sizes) {
  std::vector<Stream> streams;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    streams.push_back(named_elements(static_cast<int64_t>(i), sizes[i]));
  }
  return streams;
}

TEST(Interleave, GivesTheOrderOfTheExampleOfTfData) {
  const Numbers order = order_of_tf_data({6, 6, 6, 6, 6}, {.cycle_length = 2, .block_length = 4});
  EXPECT_EQ(order, (Numbers{0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 2, 2, 3, 3, 4, 4, 4, 4, 4, 4}));
  const Stream made =
      up_to_number(5).interleave([](const Batch& one) { return named_elements(one.target.item<int64_t>(), 6); },
                                 {.cycle_length = 2, .block_length = 4});
  EXPECT_EQ(order_of(made), order);
}

TEST(Interleave, GivesTheOrderOfTfDataForStreamsOfAnyLengths) {
  const std::vector<std::vector<int64_t>> all_sizes = {{3, 3, 3, 3, 3, 3},
                                                       {1, 2, 3, 4, 5},
                                                       {5, 4, 3, 2, 1},
                                                       {0, 0, 3, 0, 2, 0},
                                                       {4, 0, 0, 4, 1, 7, 0, 2},
                                                       {0, 0, 0},
                                                       {8},
                                                       {2, 2, 0, 2, 9, 1, 1},
                                                       {1, 1, 1, 1}};
  for (const auto& sizes : all_sizes) {
    for (const int64_t cycle : {1, 2, 3, 4, 7, 20}) {
      for (const int64_t block : {1, 2, 3, 4, 10}) {
        const data::InterleaveOptions options{.cycle_length = cycle, .block_length = block};
        const std::string what = fmt::format("{}, cycle {}, block {}", fmt::join(sizes, " "), cycle, block);
        const Numbers expected = order_of_tf_data(sizes, options);
        EXPECT_EQ(order_of(data::interleave(named_streams(sizes), options)), expected) << what;
        const Stream made = up_to_number(static_cast<int64_t>(sizes.size()))
                                .interleave(
                                    [&sizes](const Batch& one) {
                                      const auto i = one.target.item<int64_t>();
                                      return named_elements(i, sizes[static_cast<std::size_t>(i)]);
                                    },
                                    options);
        EXPECT_EQ(order_of(made), expected) << what;
        // A stop at each place.
        for (const Stream& stream : {data::interleave(named_streams(sizes), options), made}) {
          const auto reader = stream.open();
          Batch element;
          for (std::size_t stop = 0; stop < expected.size(); ++stop) {
            const auto again = stream.source()->open({}, reader->position());
            Numbers rest(expected.begin(), expected.begin() + static_cast<std::ptrdiff_t>(stop));
            while (again->next(element)) rest.push_back(element.target.item<int64_t>());
            ASSERT_EQ(rest, expected) << what << ", a stop at " << stop;
            ASSERT_TRUE(reader->next(element));
          }
          EXPECT_FALSE(reader->next(element));
          EXPECT_FALSE(stream.source()->open({}, reader->position())->next(element)) << what;
        }
      }
    }
  }
}

TEST(Interleave, ContinuesCursorsOfEarlierVersionsWhereTheOrderIsTheSame) {
  // What the version before gave for one stream after the other: the next stream, the turn, elements of it, open
  // streams, then the key and the position of each.
  const Stream one_by_one = up_to_number(3).concatenate(up_to_number(4));
  const data::StreamPosition inner = [] {
    const auto reader = up_to_number(3).open();
    Batch element;
    reader->next(element);
    return reader->position();
  }();
  data::StreamPosition earlier{1, 1, 0, 0, 1, 1, 0, static_cast<int64_t>(inner.size())};
  earlier.insert(earlier.end(), inner.begin(), inner.end());
  const auto reader = one_by_one.source()->open({}, earlier);
  Numbers rest;
  for (Batch element; reader->next(element);) rest.push_back(element.target.item<int64_t>());
  EXPECT_EQ(rest, (Numbers{1, 2, 0, 1, 2, 3}));

  const Stream in_turn = data::interleave({up_to_number(3), up_to_number(4)}, {.cycle_length = 2});
  expect_error<UsageError>([&] { in_turn.source()->open({}, earlier); }, "LS-STATE-MISFIT", {"earlier version", "2"});
}

}  // namespace
}  // namespace lockstep
