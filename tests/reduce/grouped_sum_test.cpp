// Sums in groups of 256, and of groups: a function of the numbers and their places alone.
#include "lockstep/reduce/grouped_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace lockstep::internal {
namespace {

/// The promised order, written out.
double in_groups(std::vector<double> numbers) {
  while (numbers.size() > 1) {
    std::vector<double> groups;
    for (std::size_t first = 0; first < numbers.size(); first += 256) {
      double sum = 0;
      for (std::size_t i = first; i < std::min(first + 256, numbers.size()); ++i) sum += numbers[i];
      groups.push_back(sum);
    }
    numbers = groups;
  }
  return numbers.empty() ? 0 : numbers.front();
}

double in_one_chain(const std::vector<double>& numbers) {
  double sum = 0;
  for (const double number : numbers) sum += number;
  return sum;
}

double grouped(const std::vector<double>& numbers) {
  GroupedSum sum;
  for (const double number : numbers) sum.add(number);
  return sum.result();
}

std::vector<double> some(std::size_t count) {
  std::mt19937_64 random(count);
  std::vector<double> numbers(count);
  for (double& number : numbers) number = std::exp(std::normal_distribution<double>(0, 3)(random));
  return numbers;
}

TEST(GroupedSum, HasThePromisedOrder) {
  for (const std::size_t count :
       {0, 1, 2, 63, 64, 65, 255, 256, 257, 511, 512, 513, 1000, 256 * 256 - 1, 256 * 256, 256 * 256 + 1, 300000}) {
    const std::vector<double> numbers = some(count);
    EXPECT_EQ(grouped(numbers), in_groups(numbers)) << count;
  }
}

TEST(GroupedSum, IsNotOneChain) {
  int differ = 0;
  for (const std::size_t count : {1000, 5000, 256 * 256 + 1}) {
    const std::vector<double> numbers = some(count);
    differ += grouped(numbers) != in_one_chain(numbers) ? 1 : 0;
    EXPECT_NEAR(grouped(numbers), in_one_chain(numbers), 1e-12 * in_one_chain(numbers));
  }
  EXPECT_GT(differ, 0);
  for (const std::size_t count : {1, 100, 256}) {
    const std::vector<double> numbers = some(count);
    EXPECT_EQ(grouped(numbers), in_one_chain(numbers)) << "one group is one chain";
  }
}

TEST(GroupedSum, CanBeAskedAtAnyTime) {
  const std::vector<double> numbers = some(700);
  GroupedSum sum;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    sum.add(numbers[i]);
    ASSERT_EQ(sum.result(), in_groups({numbers.begin(), numbers.begin() + static_cast<std::ptrdiff_t>(i) + 1})) << i;
  }
}

TEST(GroupedSum, OfWholeGroupsNeedsTheirSumsAlone) {
  // As where someone else, such as another worker or device, has added groups.
  const std::vector<double> numbers = some(256 * 7 + 30);
  GroupedSum groups;
  for (std::size_t first = 0; first < numbers.size(); first += 256) {
    const auto begin = numbers.begin() + static_cast<std::ptrdiff_t>(first);
    groups.add(
        grouped({begin, begin + static_cast<std::ptrdiff_t>(std::min<std::size_t>(256, numbers.size() - first))}));
  }
  EXPECT_EQ(groups.result(), grouped(numbers));
}

TEST(GroupedSum, KeepsWhatIsNotFinite) {
  for (const std::size_t count : {1, 256, 257, 256 * 256 + 1}) {
    for (const std::size_t place : {std::size_t{0}, count / 2, count - 1}) {
      std::vector<double> numbers = some(count);
      numbers[place] = std::numeric_limits<double>::infinity();
      EXPECT_EQ(grouped(numbers), numbers[place]);
      numbers[place] = std::numeric_limits<double>::quiet_NaN();
      EXPECT_TRUE(std::isnan(grouped(numbers)));
    }
  }
}

}  // namespace
}  // namespace lockstep::internal
