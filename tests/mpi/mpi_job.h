// Workers that a test starts by mpirun.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "tests/mpi/shared_page.h"
#include "tests/support/free_port.h"
#include "tests/support/started_program.h"

namespace lockstep::testing {

/// The launcher: Open MPI's that was found when this was built, or MPICH's, which LOCKSTEP_MPICH names where
/// scripts/test-launchers runs these tests. That sets LD_LIBRARY_PATH too, to a plug-in that is built with MPICH.
inline std::string mpirun() {
  const char* const mpich = std::getenv("LOCKSTEP_MPICH");
  return mpich ? mpich : LOCKSTEP_MPIRUN;
}
inline bool is_open_mpi() { return std::getenv("LOCKSTEP_MPICH") == nullptr; }

/// One start of mpirun. Its files lie in a folder of its own, which goes with it.
class MpiJob {
 public:
  /// `words` are those of mpi_worker after its page.
  MpiJob(int64_t workers, const std::vector<std::string>& words)
      : workers_(workers), folder_(new_folder()), page_(SharedPage::at(folder_ + "/page")) {
    // Where a rank ends without MPI_Finalize(), as after a failed run, the others are left alone.
    std::vector<std::string> command{mpirun(), is_open_mpi() ? "--enable-recovery" : "-disable-auto-cleanup"};
    for (const std::string& word :
         {std::string("-n"), std::to_string(workers), std::string(LOCKSTEP_MPI_WORKER), folder_ + "/page"}) {
      command.push_back(word);
    }
    command.insert(command.end(), words.begin(), words.end());
    const std::string chief = fmt::format("127.0.0.1:{}", free_port());
    const pid_t parent = getpid();
    launcher_ = std::make_unique<StartedProgram>(command, [&] {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(99);
      setenv("LOCKSTEP_CHIEF_ADDRESS", chief.c_str(), 1);
      setenv("LOCKSTEP_JOB_ID", chief.c_str(), 1);  // MPICH tells none
      setenv("TMPDIR", folder_.c_str(), 1);
      // Open MPI refuses more processes than cores, and root, where it is not told otherwise.
      for (const char* name :
           {"OMPI_MCA_rmaps_base_oversubscribe", "OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"}) {
        setenv(name, "1", 1);
      }
      setenv("OMPI_MCA_btl_vader_backing_directory", folder_.c_str(), 1);
    });
    launcher_->allow(kLongest);
  }
  ~MpiJob() {
    launcher_.reset();
    kill_workers();
    munmap(&page_, sizeof(page_));
    std::filesystem::remove_all(folder_);
  }
  MpiJob(const MpiJob&) = delete;
  MpiJob& operator=(const MpiJob&) = delete;

  const WorkerPlace& place(int64_t worker) const { return page_.workers.at(static_cast<std::size_t>(worker)); }
  std::span<const WorkerPlace> places() const {
    return std::span(page_.workers).first(static_cast<std::size_t>(workers_));
  }
  bool has_failed_run() const { return page_.numbers[0] != 0; }

  /// Waits until it holds for the worker; false after `bound`.
  bool wait_for(int64_t worker, const std::function<bool(const WorkerPlace&)>& holds, std::chrono::milliseconds bound) {
    const auto end = std::chrono::steady_clock::now() + bound;
    while (!holds(place(worker))) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // a page tells nobody that it has changed
    }
    return true;
  }
  /// One that has ended and that nobody has waited for does not live.
  static bool is_alive(const WorkerPlace& one) {
    std::ifstream file(fmt::format("/proc/{}/stat", one.pid.load()));
    std::string line;
    std::getline(file, line);
    return one.pid != 0 && !line.empty() && line.compare(line.rfind(')') + 2, 1, "Z") != 0;
  }
  /// The exit code of mpirun, or minus the signal.
  int wait() { return launcher_->wait(); }
  std::string output() const { return launcher_->output() + launcher_->errors(); }
  void signal(int64_t worker, int number) const { kill(static_cast<pid_t>(place(worker).pid), number); }
  /// The workers, and the launcher: where it was told to leave the others alone, it may wait for dead ranks for ever.
  void kill_all() const {
    kill_workers();
    launcher_->signal(SIGKILL);
  }
  void kill_workers() const {
    for (const WorkerPlace& one : places()) {
      if (one.pid != 0) kill(static_cast<pid_t>(one.pid), SIGKILL);
    }
  }

  /// Workers that live when mpirun has ended. Files of MPI are mpirun's to remove: scripts/test-launchers looks for
  /// them where nobody kills it.
  std::vector<std::string> left() const {
    std::vector<std::string> left;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    do {
      left.clear();
      for (const WorkerPlace& one : places()) {
        if (is_alive(one)) left.push_back(fmt::format("process {}", one.pid.load()));
      }
      if (left.empty()) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    } while (std::chrono::steady_clock::now() < end);
    return left;
  }

 private:
  static constexpr std::chrono::seconds kLongest{180};

  static std::string new_folder() {
    std::string name = (std::filesystem::temp_directory_path() / "lockstep-mpi-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make a folder like " + name);
    return name;
  }

  const int64_t workers_;
  const std::string folder_;
  SharedPage& page_;
  std::unique_ptr<StartedProgram> launcher_;
};

}  // namespace lockstep::testing
