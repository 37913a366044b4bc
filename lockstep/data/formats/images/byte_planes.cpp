#include "lockstep/data/formats/images/byte_planes.h"

#include <array>

#if defined(__x86_64__)
#include <tmmintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace lockstep::internal::inline data {

void copy_to_planes_plain(const unsigned char* from, int64_t pixels, unsigned char* to, int64_t plane) {
  for (int64_t i = 0; i < pixels; ++i, from += 3) {
    to[i] = from[0];
    to[i + plane] = from[1];
    to[i + 2 * plane] = from[2];
  }
}

namespace {

constexpr int kBlock = 16;  // pixels, as 48 bytes: three registers

#if defined(__x86_64__)

/// For each register of a block: where its byte of pixel i and `channel` lies, or none (the upper bit).
constexpr std::array<std::array<char, kBlock>, 3> places_of(int channel) {
  std::array<std::array<char, kBlock>, 3> places{};
  for (int part = 0; part < 3; ++part) {
    for (int i = 0; i < kBlock; ++i) {
      const int at = 3 * i + channel - kBlock * part;
      places[static_cast<std::size_t>(part)][static_cast<std::size_t>(i)] =
          static_cast<char>(at >= 0 && at < kBlock ? at : -1);
    }
  }
  return places;
}
constexpr std::array kPlaces = {places_of(0), places_of(1), places_of(2)};

bool has_blocks() { return __builtin_cpu_supports("ssse3"); }

__attribute__((target("ssse3"))) void copy_by_blocks(const unsigned char* from, int64_t pixels, unsigned char* to,
                                                     int64_t plane) {
  const auto load = [](const void* at) __attribute__((target("ssse3"))) {
    return _mm_loadu_si128(static_cast<const __m128i*>(at));
  };
  int64_t i = 0;
  for (; i + kBlock <= pixels; i += kBlock, from += 3 * kBlock) {
    const __m128i parts[] = {load(from), load(from + kBlock), load(from + 2 * kBlock)};
    for (std::size_t channel = 0; channel < 3; ++channel) {
      const auto& places = kPlaces[channel];
      const __m128i bytes = _mm_or_si128(_mm_or_si128(_mm_shuffle_epi8(parts[0], load(places[0].data())),
                                                      _mm_shuffle_epi8(parts[1], load(places[1].data()))),
                                         _mm_shuffle_epi8(parts[2], load(places[2].data())));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + static_cast<int64_t>(channel) * plane + i), bytes);
    }
  }
  copy_to_planes_plain(from, pixels - i, to + i, plane);
}

#elif defined(__aarch64__)

bool has_blocks() { return true; }

void copy_by_blocks(const unsigned char* from, int64_t pixels, unsigned char* to, int64_t plane) {
  int64_t i = 0;
  for (; i + kBlock <= pixels; i += kBlock, from += 3 * kBlock) {
    const uint8x16x3_t channels = vld3q_u8(from);
    for (int channel = 0; channel < 3; ++channel) vst1q_u8(to + channel * plane + i, channels.val[channel]);
  }
  copy_to_planes_plain(from, pixels - i, to + i, plane);
}

#else

bool has_blocks() { return false; }

void copy_by_blocks(const unsigned char* from, int64_t pixels, unsigned char* to, int64_t plane) {
  copy_to_planes_plain(from, pixels, to, plane);
}

#endif

}  // namespace

void copy_to_planes(const unsigned char* from, int64_t pixels, unsigned char* to, int64_t plane) {
  static const bool has = has_blocks();
  (has ? copy_by_blocks : copy_to_planes_plain)(from, pixels, to, plane);
}

}  // namespace lockstep::internal::data
