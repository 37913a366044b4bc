#include "lockstep/comm/network/wire/stream.h"

#include <fmt/format.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "lockstep/comm/join/authentication.h"
#include "lockstep/core/error.h"

namespace lockstep::internal::inline comm {

namespace {

constexpr char kIdentity[] = "lockstep";

/// RFC 8446, section 5.5: AES-GCM may protect 2^24.5 full records under one key, which are 388 GB.
constexpr std::size_t kMostBytesOfOneKey = std::size_t{1} << 37;

[[noreturn]] void fail(const char* what) {
  std::array<char, 256> text = {};
  ERR_error_string_n(ERR_get_error(), text.data(), text.size());
  throw ClusterError("LS-CLUSTER-SOCKET", fmt::format("OpenSSL gave no {}: {}", what, text.data()),
                     "look whether this OpenSSL allows TLS 1.3 with AES-128-GCM and SHA-256");
}

void free_key(void*, void* key, CRYPTO_EX_DATA*, int, long, void*) { delete static_cast<Proof*>(key); }

/// Where a context keeps its key.
int key_index() {
  static const int index = SSL_CTX_get_ex_new_index(0, nullptr, nullptr, nullptr, free_key);
  return index;
}

const Proof& key_of(const SSL* tls) {
  return *static_cast<const Proof*>(SSL_CTX_get_ex_data(SSL_get_SSL_CTX(tls), key_index()));
}

unsigned int key_for_client(SSL* tls, const char*, char* identity, unsigned int most_identity, unsigned char* key,
                            unsigned int most_key) {
  const Proof& mine = key_of(tls);
  if (most_identity < sizeof(kIdentity) || most_key < mine.size()) return 0;
  std::memcpy(identity, kIdentity, sizeof(kIdentity));
  std::memcpy(key, mine.data(), mine.size());
  return static_cast<unsigned int>(mine.size());
}

unsigned int key_for_server(SSL* tls, const char* identity, unsigned char* key, unsigned int most_key) {
  const Proof& mine = key_of(tls);
  if (std::strcmp(identity, kIdentity) != 0 || most_key < mine.size()) return 0;
  std::memcpy(key, mine.data(), mine.size());
  return static_cast<unsigned int>(mine.size());
}

Transfer failed_with(int error) {
  if (error == ECONNRESET || error == EPIPE) return {.state = Transfer::State::kClosed};
  return {.state = Transfer::State::kFailed, .error = error};
}

/// Records are sent so many bytes at a time: each send() of a record alone costs more than to encrypt it.
constexpr std::size_t kGathered = std::size_t{64} << 10;

}  // namespace

struct Stream::Wire {
  int socket;
  bool gathers = false;              // what OpenSSL writes is kept
  std::vector<std::byte> kept = {};  // it goes out before anything else
  std::size_t sent = 0;              // of this
};

// OpenSSL's own sockets write without MSG_NOSIGNAL: a peer that ends would kill this process by SIGPIPE.
struct SocketMethod {
  static Stream::Wire& wire_of(BIO* bio) { return *static_cast<Stream::Wire*>(BIO_get_data(bio)); }

  static int write(BIO* bio, const char* bytes, std::size_t count, std::size_t* written) {
    BIO_clear_retry_flags(bio);
    Stream::Wire& wire = wire_of(bio);
    if (wire.gathers || !wire.kept.empty()) {
      const auto from = std::as_bytes(std::span(bytes, count));
      wire.kept.insert(wire.kept.end(), from.begin(), from.end());
      *written = count;
      return 1;
    }
    const ssize_t sent = ::send(wire.socket, bytes, count, MSG_NOSIGNAL);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_write(bio);
    *written = static_cast<std::size_t>(std::max<ssize_t>(sent, 0));
    return sent > 0 ? 1 : 0;
  }

  static int read(BIO* bio, char* place, std::size_t size, std::size_t* got) {
    BIO_clear_retry_flags(bio);
    const ssize_t count = ::recv(wire_of(bio).socket, place, size, 0);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_read(bio);
    if (count == 0) BIO_set_flags(bio, BIO_FLAGS_IN_EOF);
    *got = static_cast<std::size_t>(std::max<ssize_t>(count, 0));
    return count > 0 ? 1 : 0;
  }

  static long control(BIO* bio, int command, long, void*) {
    if (command == BIO_CTRL_EOF) return BIO_test_flags(bio, BIO_FLAGS_IN_EOF) ? 1 : 0;
    return command == BIO_CTRL_FLUSH ? 1 : 0;
  }

  static const BIO_METHOD* get() {
    static const BIO_METHOD* const method = [] {
      BIO_METHOD* const made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "lockstep socket");
      if (!made) fail("BIO");
      BIO_meth_set_write_ex(made, write);
      BIO_meth_set_read_ex(made, read);
      BIO_meth_set_ctrl(made, control);
      return made;
    }();
    return method;
  }
};

TlsContext::TlsContext(const std::string& secret, const std::string& job) : context_(SSL_CTX_new(TLS_method())) {
  if (!context_) fail("TLS");
  if (SSL_CTX_set_ex_data(context_, key_index(), new Proof(hmac(secret, "lockstep tls, job:" + job))) != 1 ||
      SSL_CTX_set_min_proto_version(context_, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_ciphersuites(context_, "TLS_AES_128_GCM_SHA256") != 1) {
    SSL_CTX_free(context_);
    fail("TLS 1.3");
  }
  SSL_CTX_set_psk_client_callback(context_, key_for_client);
  SSL_CTX_set_psk_server_callback(context_, key_for_server);
  // No tickets: after the handshake nothing is on its way that the program has not written.
  SSL_CTX_set_num_tickets(context_, 0);
  SSL_CTX_set_session_cache_mode(context_, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(context_,
                   SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
}

TlsContext::~TlsContext() { SSL_CTX_free(context_); }

void Stream::Free::operator()(SSL* tls) const { SSL_free(tls); }

Stream::Stream(int socket) : socket_(socket) {}

Stream::Stream(int socket, const TlsContext& keys, Role role)
    : socket_(socket), wire_(new Wire{.socket = socket}), tls_(SSL_new(keys.context())) {
  if (!tls_) fail("TLS connection");
  BIO* const bio = BIO_new(SocketMethod::get());
  if (!bio) fail("BIO");
  BIO_set_data(bio, wire_.get());
  BIO_set_init(bio, 1);
  SSL_set_bio(tls_.get(), bio, bio);
  if (role == Role::kClient) {
    SSL_set_connect_state(tls_.get());
    // No authority is known, so every certificate is refused: the key alone says who belongs to the job.
    SSL_set_verify(tls_.get(), SSL_VERIFY_PEER, nullptr);
  } else {
    SSL_set_accept_state(tls_.get());
  }
}

Stream::~Stream() = default;
Stream::Stream(Stream&&) noexcept = default;

Transfer Stream::result_of(int returned) {
  const int system_error = errno;
  switch (SSL_get_error(tls_.get(), returned)) {
    case SSL_ERROR_WANT_READ: return {.state = Transfer::State::kWantsRead};
    case SSL_ERROR_WANT_WRITE: return {.state = Transfer::State::kWantsWrite};
    case SSL_ERROR_ZERO_RETURN: return {.state = Transfer::State::kClosed};
    case SSL_ERROR_SYSCALL: return failed_with(system_error == 0 ? ECONNRESET : system_error);
    default:
      switch (ERR_GET_REASON(ERR_peek_error())) {
        // A process that is killed closes without a word of TLS.
        case SSL_R_UNEXPECTED_EOF_WHILE_READING: return {.state = Transfer::State::kClosed};
        // What came is not what the other side sent; or the other side has found that, and says so.
        case SSL_R_DECRYPTION_FAILED_OR_BAD_RECORD_MAC:
        case SSL_R_SSLV3_ALERT_BAD_RECORD_MAC:
          return {.state = Transfer::State::kFailed, .error = EPROTO, .text = "bytes were changed on their way"};
        default: return {.state = Transfer::State::kFailed, .error = EPROTO};
      }
  }
}

// OpenSSL's queue of errors belongs to the thread: what another connection left there would be taken for this one's.

Transfer Stream::handshake() {
  ERR_clear_error();
  errno = 0;
  const int returned = SSL_do_handshake(tls_.get());
  if (returned != 1) return result_of(returned);
  // A server could have passed over our key, and shown a certificate.
  if (SSL_session_reused(tls_.get()) != 1) return {.state = Transfer::State::kFailed, .error = EPROTO};
  return {};
}

Transfer Stream::read(std::span<std::byte> place) {
  Transfer transfer;
  if (tls_) {
    ERR_clear_error();
    errno = 0;
    const int returned = SSL_read_ex(tls_.get(), place.data(), place.size(), &transfer.bytes);
    return returned == 1 ? transfer : result_of(returned);
  }
  const ssize_t got = ::recv(socket_, place.data(), place.size(), 0);
  if (got > 0) return {.bytes = static_cast<std::size_t>(got)};
  if (got == 0) return {.state = Transfer::State::kClosed};
  if (errno == EAGAIN || errno == EINTR) return {.state = Transfer::State::kWantsRead};
  return failed_with(errno);
}

/// Makes records of the beginning of these bytes, and keeps them in the wire.
Transfer Stream::encrypt(std::span<const std::byte> bytes) {
  ERR_clear_error();
  errno = 0;
  bytes = bytes.first(std::min(bytes.size(), kGathered));
  wire_->gathers = true;
  int returned = 1;
  while (returned == 1 && encrypted_ < bytes.size()) {
    std::size_t count = 0;
    returned = SSL_write_ex(tls_.get(), bytes.data() + encrypted_, bytes.size() - encrypted_, &count);
    encrypted_ += count;
  }
  wire_->gathers = false;
  if (returned != 1) return result_of(returned);
  written_ += encrypted_;
  if (written_ >= kMostBytesOfOneKey) {
    SSL_key_update(tls_.get(), SSL_KEY_UPDATE_NOT_REQUESTED);  // goes out before the next bytes
    written_ = 0;
  }
  return {};
}

Transfer Stream::write(std::span<const std::byte> bytes) {
  if (tls_ && encrypted_ == 0) {
    const Transfer transfer = encrypt(bytes);
    if (transfer.state != Transfer::State::kDone) return transfer;
  }
  const std::span<const std::byte> out = tls_ ? std::span<const std::byte>(wire_->kept).subspan(wire_->sent) : bytes;
  const ssize_t sent = ::send(socket_, out.data(), out.size(), MSG_NOSIGNAL);
  if (sent < 0 && (errno == EAGAIN || errno == EINTR)) return {.state = Transfer::State::kWantsWrite};
  if (sent < 0) return failed_with(errno);
  const auto count = static_cast<std::size_t>(sent);
  if (!tls_) return {.bytes = count};
  wire_->sent += count;
  if (count < out.size()) return {.state = Transfer::State::kWantsWrite};
  wire_->kept.clear();
  wire_->sent = 0;
  return {.bytes = std::exchange(encrypted_, 0)};
}

}  // namespace lockstep::internal::comm
