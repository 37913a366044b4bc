// The bytes of one TCP connection, which TLS 1.3 protects.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

typedef struct ssl_st SSL;
typedef struct ssl_ctx_st SSL_CTX;

namespace lockstep::internal::inline comm {

/// What TLS needs to know on all connections of a worker: one key that follows from the job's secret, and no
/// certificate. Whoever does not know the secret cannot finish the handshake. Each connection has keys of its own, made
/// by Diffie-Hellman (RFC 8446, psk_dhe_ke), so that one who learns the secret later cannot read what was recorded.
class TlsContext {
 public:
  /// `job` keeps jobs apart that use the same secret.
  TlsContext(const std::string& secret, const std::string& job);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  SSL_CTX* context() const { return context_; }

 private:
  SSL_CTX* context_ = nullptr;
};

/// What came of one attempt to read or write. Nothing waits.
struct Transfer {
  enum class State : uint8_t {
    kDone,        // `bytes` were moved, at least one; or the handshake is over
    kWantsRead,   // try again when something has come
    kWantsWrite,  // try again when there is room
    kClosed,      // the other side has closed the connection, or its process has ended
    kFailed,      // `error` says why
  };
  State state = State::kDone;
  std::size_t bytes = 0;
  int error = 0;               // of kFailed: an errno, or EPROTO where TLS refused what came
  const char* text = nullptr;  // of kFailed: says more than the number, where there is one
};

/// Reads and writes a connection that does not block and stays its caller's. One thread at a time uses a stream.
class Stream {
 public:
  enum class Role : uint8_t { kClient, kServer };

  /// In the clear.
  explicit Stream(int socket);
  /// With TLS; handshake() comes first. `keys` outlives the stream.
  Stream(int socket, const TlsContext& keys, Role role);
  ~Stream();
  Stream(Stream&&) noexcept;

  Transfer handshake();
  Transfer read(std::span<std::byte> place);
  /// Where it wants to be tried again, it has to be with the same bytes, and perhaps more after them.
  Transfer write(std::span<const std::byte> bytes);
  /// Both sides go on without TLS. Nothing may be on its way.
  void drop_tls() { tls_.reset(); }

 private:
  struct Free {
    void operator()(SSL* tls) const;
  };
  /// What is between OpenSSL and the socket.
  struct Wire;
  friend struct SocketMethod;
  Transfer result_of(int returned);
  Transfer encrypt(std::span<const std::byte> bytes);

  int socket_;
  std::unique_ptr<Wire> wire_;  // first: TLS uses it
  std::unique_ptr<SSL, Free> tls_;
  std::size_t encrypted_ = 0;  // bytes whose records are in the wire
  std::size_t written_ = 0;    // under the key of now
};

}  // namespace lockstep::internal::comm
