// The plug-in liblockstep_ucx.so: messages by UCX, for networks with RDMA.
#include <sys/mman.h>
#include <ucp/api/ucp.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>

#include "lockstep/comm/messenger.h"
#include "lockstep/comm/ucx/ucx_devices.h"

namespace lockstep::internal::inline comm {

namespace {

using State = Message::State;

void check(ucs_status_t status, const std::string& what) {
  if (status != UCS_OK) throw std::runtime_error(what + ": " + ucs_status_string(status));
}

/// A message with what UCX knows of it.
struct UcxMessage : Message {
  ucp_mem_h registered = nullptr;   // null where the devices want no registration, or the system allows none
  void* request = nullptr;          // while it moves
  int64_t* moving_there = nullptr;  // of a message to send: how many move to its worker
};

/// Frees what UCX made.
struct Handles {
  ucp_context_h context = nullptr;
  ucp_worker_h worker = nullptr;

  Handles() = default;
  ~Handles() {
    destroy_worker();
    if (context != nullptr) ucp_cleanup(context);
  }
  void destroy_worker() {
    if (worker != nullptr) ucp_worker_destroy(std::exchange(worker, nullptr));
  }
  Handles(const Handles&) = delete;
  Handles& operator=(const Handles&) = delete;
};

class UcxMessenger final : public Messenger {
 public:
  explicit UcxMessenger(const MessengerSetup& setup)
      : me_(static_cast<uint64_t>(setup.worker_index)),
        devices_(ucx_devices(setup.network_interface)),
        ucx_(std::make_unique<Handles>()),
        others_(static_cast<std::size_t>(setup.num_workers)) {
    ucp_config_t* config = nullptr;
    check(ucp_config_read(nullptr, nullptr, &config), "UCX cannot read its configuration");
    if (const char* const own = std::getenv("UCX_NET_DEVICES")) devices_ = own;
    // Memory of a worker that has died cannot be shared with it, so that workers of one host use the network too.
    const bool is_set = set_default(config, "NET_DEVICES", devices_) && set_default(config, "TLS", "^shm");
    if (!is_set) {
      ucp_config_release(config);
      throw std::runtime_error("UCX does not take the devices " + devices_);
    }
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS;
    params.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP;
    params.estimated_num_eps = others_.size() - 1;
    const ucs_status_t made = ucp_init(&params, config, &ucx_->context);
    ucp_config_release(config);
    check(made, "UCX cannot use the devices " + devices_);
    ucp_worker_params_t worker{};
    worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    worker.thread_mode = UCS_THREAD_MODE_SERIALIZED;
    check(ucp_worker_create(ucx_->context, &worker, &ucx_->worker), "UCX cannot use the devices " + devices_);
    check(ucp_worker_get_efd(ucx_->worker, &event_), "UCX gives no event");
  }

  ~UcxMessenger() override {
    end(false);
    if (may_free_) {
      ucx_->destroy_worker();
      for (UcxMessage& one : messages_) free(one);
      return;
    }
    // UCX cannot be stopped surely: its handles and all memory that it may still write or read stay for ever.
    static_cast<void>(ucx_.release());
    static_cast<void>(new std::deque<UcxMessage>(std::move(messages_)));
  }
  UcxMessenger(const UcxMessenger&) = delete;
  UcxMessenger& operator=(const UcxMessenger&) = delete;

  std::string describe() const override {
    return "ucx: UCX moves the bytes by " + devices_ +
           "; the workers have authenticated each other by the job's secret, and the bytes are neither encrypted nor "
           "authenticated";
  }

  std::string address() override {
    ucp_address_t* bytes = nullptr;
    std::size_t size = 0;
    check(ucp_worker_get_address(ucx_->worker, &bytes, &size), "UCX gives no address");
    std::string result(reinterpret_cast<const char*>(bytes), size);
    ucp_worker_release_address(ucx_->worker, bytes);
    return result;
  }

  void connect(const std::vector<std::string>& addresses) override {
    for (std::size_t w = 0; w < others_.size(); ++w) {
      if (w == me_) continue;
      ucp_ep_params_t params{};
      params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
      params.address = reinterpret_cast<const ucp_address_t*>(addresses[w].data());
      params.err_mode = UCP_ERR_HANDLING_MODE_NONE;
      check(ucp_ep_create(ucx_->worker, &params, &others_[w].endpoint),
            "UCX cannot connect with worker " + std::to_string(w) + " by " + devices_);
      // UCX makes connections when something is sent.
      constexpr std::size_t kShort = 8;
      Message& first = new_message(kShort);
      others_[w].first_message = &first;
      receive(static_cast<int64_t>(w), first);
      Message& mine = new_message(kShort);
      mine.size = kShort;
      send(static_cast<int64_t>(w), mine);
    }
  }

  std::vector<int64_t> unconnected() override {
    progress();
    std::vector<int64_t> missing;
    for (std::size_t w = 0; w < others_.size(); ++w) {
      if (w == me_) continue;
      const Message& first = *others_[w].first_message;
      if (first.state == State::kFailed) throw std::runtime_error(first.failure);
      const auto worker = static_cast<int64_t>(w);
      if (!flush(worker) || first.state != State::kDone) missing.push_back(worker);
    }
    return missing;
  }

  Message& new_message(std::size_t bytes) override {
    UcxMessage& message = messages_.emplace_back();
    void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    message.memory = {static_cast<std::byte*>(memory), bytes};
    ucp_mem_map_params_t params{};
    params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
    params.address = memory;
    params.length = bytes;
    // Without it, where locked memory is limited, UCX registers the memory each time.
    if (ucp_mem_map(ucx_->context, &params, &message.registered) != UCS_OK) message.registered = nullptr;
    return message;
  }

  void send(int64_t worker, Message& message) override {
    Other& other = others_[static_cast<std::size_t>(worker)];
    ucp_request_param_t params = params_of(message);
    ++other.moving;
    static_cast<UcxMessage&>(message).moving_there = &other.moving;
    params.cb.send = [](void* request, ucs_status_t status, void* one) { finish(one, request, status); };
    begun(message, ucp_tag_send_nbx(other.endpoint, message.memory.data(), message.size, me_, &params));
  }

  void receive(int64_t worker, Message& message) override {
    ucp_request_param_t params = params_of(message);
    params.cb.recv = [](void* request, ucs_status_t status, const ucp_tag_recv_info_t* info, void* one) {
      static_cast<UcxMessage*>(one)->size = info->length;
      finish(one, request, status);
    };
    // So that the function above is called, and tells the size, also where the message is there already.
    params.op_attr_mask |= UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
    constexpr ucp_tag_t kWholeTag = ~ucp_tag_t{0};
    begun(message, ucp_tag_recv_nbx(ucx_->worker, message.memory.data(), message.memory.size(),
                                    static_cast<ucp_tag_t>(worker), kWholeTag, &params));
  }

  void progress() override {
    constexpr int kMost = 64;
    for (int i = 0; i < kMost && ucp_worker_progress(ucx_->worker) != 0; ++i) pause_ = kShortestPause;
  }

  bool flush(int64_t worker) override {
    // A message is done when the device, or the kernel, has it. ucp_ep_flush_nbx() says more, and may need the other
    // worker to make progress, which has perhaps returned from the call.
    const Other& other = others_[static_cast<std::size_t>(worker)];
    if (other.moving > 0) progress();
    return other.moving == 0;
  }

  Sleep sleep() override {
    const ucs_status_t armed = ucp_worker_arm(ucx_->worker);
    if (armed == UCS_ERR_BUSY) return {.longest = {}};
    // The event does not tell of all that UCX has put off, such as making a connection.
    pause_ = std::min(2 * pause_, kLongestPause);
    return {.file = armed == UCS_OK ? event_ : -1, .longest = pause_};
  }

  void end(bool /*has_failed*/) override {
    if (std::exchange(has_ended_, true)) return;
    for (UcxMessage& one : messages_) {
      if (one.state == State::kMoving) ucp_request_cancel(ucx_->worker, one.request);
    }
    // A message that was already under way cannot be cancelled: it ends by itself, or its worker is dead.
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
    const auto is_moving = [](const UcxMessage& one) { return one.state == State::kMoving; };
    progress();
    while (std::any_of(messages_.begin(), messages_.end(), is_moving)) {
      if (std::chrono::steady_clock::now() >= until) return;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
      progress();
    }
    may_free_ = true;
  }

 private:
  static constexpr std::chrono::microseconds kShortestPause{50};
  static constexpr std::chrono::microseconds kLongestPause{10'000};

  struct Other {
    ucp_ep_h endpoint = nullptr;
    const Message* first_message = nullptr;
    int64_t moving = 0;  // messages that go there
  };

  /// The user's own variable stays.
  static bool set_default(ucp_config_t* config, const std::string& name, const std::string& value) {
    return std::getenv(("UCX_" + name).c_str()) != nullptr ||
           ucp_config_modify(config, name.c_str(), value.c_str()) == UCS_OK;
  }

  /// For an operation that begins.
  static ucp_request_param_t params_of(Message& message) {
    auto& one = static_cast<UcxMessage&>(message);
    one.state = State::kMoving;
    ucp_request_param_t params{};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    params.user_data = &one;
    if (one.registered != nullptr) {
      params.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
      params.memh = one.registered;
    }
    return params;
  }

  /// Takes what UCX gave for an operation that has begun: nothing, where it is done; an error, or a request. finish()
  /// may have been called by then.
  static void begun(Message& message, ucs_status_ptr_t request) {
    auto& one = static_cast<UcxMessage&>(message);
    if (!UCS_PTR_IS_PTR(request)) return finish(&one, nullptr, UCS_PTR_STATUS(request));
    if (one.state == State::kMoving) one.request = request;
  }

  static void finish(void* message, void* request, ucs_status_t status) {
    auto& one = *static_cast<UcxMessage*>(message);
    one.request = nullptr;
    if (one.moving_there != nullptr) --*one.moving_there;
    one.state = status == UCS_OK ? State::kDone : State::kFailed;
    if (status != UCS_OK) one.failure = std::string("UCX: ") + ucs_status_string(status);
    if (request != nullptr) ucp_request_free(request);
  }

  void free(UcxMessage& one) {
    if (one.registered != nullptr) ucp_mem_unmap(ucx_->context, one.registered);
    munmap(one.memory.data(), one.memory.size());
  }

  const uint64_t me_;
  std::string devices_;
  std::unique_ptr<Handles> ucx_;
  std::vector<Other> others_;        // by worker; this one's stays empty
  std::deque<UcxMessage> messages_;  // whose addresses UCX knows
  int event_ = -1;                   // of UCX
  std::chrono::microseconds pause_ = kShortestPause;
  bool has_ended_ = false;
  bool may_free_ = false;
};

}  // namespace

extern "C" Messenger* lockstep_messenger_2(const MessengerSetup& setup) { return new UcxMessenger(setup); }

}  // namespace lockstep::internal::comm
