// First calls of a process, made on two threads at the same time.
#pragma once

/// Computes on two threads: `way` is "lanes", "workers", "readers", "own-threads" or "first-tensors", and function
/// number `first` is the first one. Prints what had other bits than in a second call, and a digest of all results.
/// Returns 0 where nothing had, 1 where something had, and 2 for another `way`.
extern "C" int first_calls(const char* way, int first);
