// The program of first calls, linked with the library. Usage: first_calls WAY NUMBER
#include "tests/first_calls/first_calls.h"

#include <cstdio>
#include <cstdlib>

#include "tests/first_calls/detections.h"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const int code = first_calls(argv[1], std::atoi(argv[2]));
  std::printf("detected %s\n", lockstep::testing::detections().c_str());
  return code;
}
