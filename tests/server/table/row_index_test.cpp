// The index and the store of rows, beside the standard library's map.
#include "lockstep/server/table/row_index.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>
#include <unordered_map>
#include <vector>

#include "lockstep/server/table/row_store.h"

namespace lockstep::internal {
namespace {

constexpr auto any = [](uint32_t) { return true; };

TEST(AnIndex, FindsWhatIsInItWhateverWasErasedBefore) {
  // Few different hashes, so that runs of entries are long, wrap around and have equal bits.
  std::mt19937_64 random(1);
  RowIndex index;
  std::unordered_map<uint32_t, uint64_t> hashes;  // by place
  std::vector<uint32_t> places;
  const auto here = [&](uint64_t hash, uint32_t place) {
    return index.find(hash, [&](uint32_t found) { return found == place; }) == place;
  };
  uint32_t next = 0;
  for (int step = 0; step < 18'000; ++step) {
    const bool grows = step / 3000 % 2 == 0;
    if (places.empty() || random() % 10 < (grows ? 7u : 3u)) {
      const uint64_t hash = (random() % 3) << 32 | (random() % 8 ? random() % 500 : 0xfffffff0u + random() % 16);
      index.insert(hash, next);
      hashes[next] = hash;
      places.push_back(next++);
    } else {
      std::swap(places[random() % places.size()], places.back());
      const uint32_t place = places.back();
      const uint64_t hash = hashes[place];
      if (random() % 4 == 0) {
        index.move(hash, place, next);
        EXPECT_FALSE(here(hash, place));
        hashes.erase(place);
        hashes[next] = hash;
        places.back() = next++;
      } else {
        index.erase(hash, place);
        EXPECT_FALSE(here(hash, place));
        hashes.erase(place);
        places.pop_back();
      }
    }
    if (step % 500 != 0) continue;
    for (const auto& [place, hash] : hashes) ASSERT_TRUE(here(hash, place)) << "after step " << step;
  }
  for (const auto& [place, hash] : hashes) index.erase(hash, place);
  for (uint64_t hash = 0; hash < 500; ++hash) EXPECT_EQ(index.find(hash, any), RowIndex::kNowhere);
}

TEST(AnIndex, TakesAsManyBytesAsItSays) {
  RowIndex index;
  EXPECT_EQ(index.bytes(), RowIndex::bytes_for(0));
  for (uint32_t k = 0; k < 100'000; ++k) index.insert(row_hash(0, k), k);
  // Parts fill unevenly, so that some have doubled and others have not.
  EXPECT_GE(index.bytes(), RowIndex::bytes_for(100'000) / 2);
  EXPECT_LE(index.bytes(), RowIndex::bytes_for(100'000) * 2);
  EXPECT_GE(index.bytes(), 100'000 * 8 * 4 / 3);
}

/// A store of rows of one number each, and what should be in it.
class Numbers {
 public:
  void set(int64_t id, int64_t number) {
    uint32_t place = store.find(id, hash(id));
    if (place == RowStore::kNowhere) place = store.add(id, hash(id));
    std::memcpy(store.write(place).values, &number, sizeof number);
    *store.write(place).position = number;
    expected[id] = number;
  }
  void remove(int64_t id) {
    const auto last = static_cast<uint32_t>(store.size() - 1);
    store.remove(store.find(id, hash(id)), hash(id), hash(store.id(last)));
    expected.erase(id);
  }
  void check() const {
    ASSERT_EQ(store.size(), static_cast<int64_t>(expected.size()));
    for (const auto& [id, number] : expected) {
      const uint32_t place = store.find(id, hash(id));
      ASSERT_NE(place, RowStore::kNowhere);
      EXPECT_EQ(std::memcmp(store.values(place), &number, sizeof number), 0);
      EXPECT_EQ(store.position(place), number);
    }
  }
  static uint64_t hash(int64_t id) { return row_hash(5, id); }

  RowStore store{8, true};
  std::map<int64_t, int64_t> expected;
};

std::map<int64_t, int64_t> read(const FrozenRows& rows) {
  std::map<int64_t, int64_t> read;
  for (uint32_t place = 0; place < rows.size(); ++place) {
    int64_t number = 0;
    std::memcpy(&number, rows.values(place), sizeof number);
    EXPECT_EQ(number, rows.position(place));
    EXPECT_TRUE(read.emplace(rows.id(place), number).second) << "row " << rows.id(place) << " is there twice";
  }
  return read;
}

TEST(AStore, KeepsAndFreezesRowsThroughAnyChanges) {
  std::mt19937_64 random(2);
  Numbers numbers;
  struct Frozen {
    FrozenRows rows;
    std::map<int64_t, int64_t> expected;
  };
  std::vector<Frozen> frozen;
  for (int64_t step = 0; step < 30'000; ++step) {
    const auto id = static_cast<int64_t>(random() % 3000);
    if (random() % 3 != 0) {
      numbers.set(id, step);
    } else if (numbers.expected.contains(id)) {
      numbers.remove(id);
    }
    if (step % 1000 != 0) continue;
    numbers.check();
    frozen.push_back({numbers.store.freeze(), numbers.expected});
    if (frozen.size() > 3) {
      EXPECT_EQ(read(frozen.front().rows), frozen.front().expected);
      // Any of them may end first.
      const auto k = static_cast<std::ptrdiff_t>(random() % frozen.size());
      std::vector<Frozen> rest;
      for (std::ptrdiff_t i = 0; i < std::ssize(frozen); ++i) {
        if (i != k) rest.push_back(std::move(frozen[static_cast<std::size_t>(i)]));
      }
      frozen = std::move(rest);
    }
  }
  for (const Frozen& one : frozen) EXPECT_EQ(read(one.rows), one.expected);
}

TEST(AStore, CopiesOnlyWhatChangesAndGivesItBack) {
  Numbers numbers;
  for (int64_t id = 0; id < 10 * SlabLayout::kRows; ++id) numbers.set(id, 1);
  const int64_t bytes = numbers.store.bytes();
  {
    const FrozenRows frozen = numbers.store.freeze();
    numbers.set(3, 2);
    numbers.set(4, 2);
    EXPECT_EQ(numbers.store.bytes(), bytes + numbers.store.layout().bytes);
    numbers.set(5 * SlabLayout::kRows, 2);
    EXPECT_EQ(numbers.store.bytes(), bytes + 2 * numbers.store.layout().bytes);
  }
  EXPECT_EQ(numbers.store.bytes(), bytes);
  numbers.set(8 * SlabLayout::kRows, 3);
  EXPECT_EQ(numbers.store.bytes(), bytes);
  numbers.check();
}

TEST(AStore, OutlivedByWhatItFroze) {
  auto numbers = std::make_unique<Numbers>();
  for (int64_t id = 0; id < 300; ++id) numbers->set(id, id);
  const auto expected = numbers->expected;
  const FrozenRows frozen = numbers->store.freeze();
  numbers.reset();
  EXPECT_EQ(read(frozen), expected);
}

}  // namespace
}  // namespace lockstep::internal
