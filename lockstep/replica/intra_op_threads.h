// How many intra-op threads an operator may use on one thread: part of what decides bits, so the library fixes it.
//
// at::set_num_threads is not used: it changes the whole process's setting and empties caches of primitives. What it
// stands on is set directly, for the calling thread: OpenMP's and MKL's thread-local numbers. OpenBLAS on its own
// threads has one number for the process, which is set for the length of a run.
#pragma once

namespace lockstep::internal {

/// Sets the calling thread's number and keeps it. For threads that belong to the library.
void set_intra_op_threads_of_this_thread(int threads);
/// The same where something changed it since; costs nanoseconds where nothing did.
void ensure_intra_op_threads_of_this_thread(int threads);

/// Gives the calling thread `threads` intra-op threads, and its own number back when it ends.
class IntraOpThreadsGuard {
 public:
  explicit IntraOpThreadsGuard(int threads);
  ~IntraOpThreadsGuard();
  IntraOpThreadsGuard(const IntraOpThreadsGuard&) = delete;
  IntraOpThreadsGuard& operator=(const IntraOpThreadsGuard&) = delete;

 private:
  int openmp_;
  int mkl_;
  int openblas_;  // 0: not touched
};

}  // namespace lockstep::internal
