#include "tools/bench/shapes.h"

#include <fmt/format.h>

#include <charconv>

#include "lockstep/core/error.h"

namespace lockstep::tools {

namespace {

[[noreturn]] void refuse(const std::string& flag, const std::string& text) {
  throw UsageError("LS-FLAG", fmt::format("{} has '{}'", flag, text),
                   "write shapes like 4096x4096*4,1000: positive sizes, '*' and how many");
}

int64_t number(const std::string& flag, const std::string& text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1) refuse(flag, text);
  return value;
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == separator) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

constexpr int64_t kMostTensors = 1000000;

void add(std::vector<Shape>& shapes, const std::string& flag, const Shape& shape, int64_t count) {
  double elements = 1;
  for (const int64_t size : shape) elements *= static_cast<double>(size);
  if (count > kMostTensors - static_cast<int64_t>(shapes.size()) || elements > 1e15) {
    throw UsageError("LS-FLAG", fmt::format("{} asks for {} tensors of {:.0f} elements", flag, count, elements),
                     fmt::format("choose at most {} tensors that fit into memory", kMostTensors));
  }
  shapes.insert(shapes.end(), static_cast<std::size_t>(count), shape);
}

}  // namespace

std::vector<Shape> parse_shapes(const std::string& flag, const std::string& text) {
  std::vector<Shape> shapes;
  for (const std::string& item : split(text, ',')) {
    const std::vector<std::string> factors = split(item, '*');
    if (factors.size() > 2) refuse(flag, item);
    Shape shape;
    for (const std::string& size : split(factors[0], 'x')) shape.push_back(number(flag, size));
    add(shapes, flag, shape, factors.size() == 2 ? number(flag, factors[1]) : 1);
  }
  return shapes;
}

std::vector<Shape> parse_tensors(const std::string& flag, const std::string& text) {
  const std::vector<std::string> parts = split(text, 'x');
  if (parts.size() != 2) refuse(flag, text);
  std::vector<Shape> shapes;
  add(shapes, flag, {number(flag, parts[1])}, number(flag, parts[0]));
  return shapes;
}

double count_elements(const std::vector<Shape>& shapes) {
  double total = 0;
  for (const Shape& shape : shapes) {
    double elements = 1;
    for (const int64_t size : shape) elements *= static_cast<double>(size);
    total += elements;
  }
  return total;
}

}  // namespace lockstep::tools
