#include "lockstep/comm/join/plug_ins.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <utility>

#include "lockstep/core/error.h"

namespace lockstep::internal::inline comm {

namespace {

using Variables = std::array<std::pair<const char*, const char*>, 7>;

struct PlugIn {
  const char* engine;
  const char* needs;      // what must be there when Lockstep is built
  Variables environment;  // what its library reads while it is loaded; the user's own values stay
};

constexpr std::array<PlugIn, 2> kPlugIns{{
    // UCX would take over signals of the program, change malloc() and mmap() to watch its memory, and warn of each
    // message that nobody takes because the run has ended. Over TCP its puts may end a process whose peer is killed, by
    // an assertion of UCX's own (seen with 1.13, tcp_ep.c).
    {"ucx",
     "UCX (libucx-dev)",
     {{{"UCX_ERROR_SIGNALS", ""},
       {"UCX_HANDLE_ERRORS", "none"},
       {"UCX_LOG_LEVEL", "error"},
       {"UCX_MEM_EVENTS", "no"},
       {"UCX_MEM_MALLOC_HOOKS", "no"},
       {"UCX_MEM_MMAP_HOOK_MODE", "none"},
       {"UCX_TCP_PUT_ENABLE", "n"}}}},
    {"mpi", "MPI (libopenmpi-dev)", {}},
}};

const PlugIn* find(const std::string& engine) {
  const auto* const found =
      std::find_if(kPlugIns.begin(), kPlugIns.end(), [&](const PlugIn& one) { return one.engine == engine; });
  return found == kPlugIns.end() ? nullptr : found;
}

[[noreturn]] void fail(const PlugIn& plug_in, const std::string& fact) {
  throw ClusterError("LS-CLUSTER-ENGINE", fmt::format("the engine {} cannot be used: {}", plug_in.engine, fact),
                     fmt::format("build Lockstep where {} is installed, or choose the engine tls", plug_in.needs));
}

/// The folder of the file that this code was loaded from.
std::filesystem::path own_folder() {
  Dl_info info{};
  if (dladdr(&kPlugIns, &info) == 0 || info.dli_fname == nullptr) return {};
  std::error_code ignored;
  const std::filesystem::path file = std::filesystem::canonical(info.dli_fname, ignored);
  return file.parent_path();
}

void* open(const PlugIn& plug_in) {
  for (const auto& [name, value] : plug_in.environment) {
    if (name != nullptr) setenv(name, value, 0);
  }
  const std::string name = fmt::format("liblockstep_{}.so", plug_in.engine);
  const std::filesystem::path beside = own_folder() / name;
  std::error_code ignored;
  const bool is_beside = std::filesystem::exists(beside, ignored);
  // It is never closed: UCX and MPI have handlers that run when the program ends.
  void* const handle = dlopen((is_beside ? beside.string() : name).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle != nullptr) return handle;
  const char* const why = dlerror();
  fail(plug_in, fmt::format("its plug-in {} is not there, or cannot be loaded ({}); it is built only where {} is found",
                            name, why == nullptr ? "no reason was given" : why, plug_in.needs));
}

}  // namespace

bool is_plug_in(const std::string& engine) { return find(engine) != nullptr; }

std::shared_ptr<Messenger> load_messenger(const std::string& engine, const MessengerSetup& setup) {
  const PlugIn* const plug_in = find(engine);
  if (plug_in == nullptr) throw InternalError("LS-INTERNAL", engine + " is no plug-in", "please report it");
  void* const function = dlsym(open(*plug_in), kMessengerFunction);
  if (function == nullptr) fail(*plug_in, "its plug-in is of another version of Lockstep");
  try {
    return std::shared_ptr<Messenger>(reinterpret_cast<MessengerFunction*>(function)(setup));
  } catch (const std::exception& error) {
    fail(*plug_in, error.what());
  }
}

bool has_rdma_device() {
  std::error_code error;
  const std::filesystem::directory_iterator devices("/sys/class/infiniband", error);
  return !error && devices != std::filesystem::directory_iterator();
}

}  // namespace lockstep::internal::comm
