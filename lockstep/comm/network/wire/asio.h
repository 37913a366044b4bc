// asio, under a namespace of this library's own: a program that links the library may use another version of asio.
#pragma once

#define asio lockstep_asio
#define ASIO_STANDALONE
#define ASIO_NO_DEPRECATED

#include <asio/awaitable.hpp>
#include <asio/co_spawn.hpp>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/ip/udp.hpp>
#include <asio/post.hpp>
#include <asio/redirect_error.hpp>
#include <asio/steady_timer.hpp>
#include <asio/this_coro.hpp>
#include <asio/use_awaitable.hpp>
#include <exception>
#include <utility>

namespace lockstep::internal::inline comm {

/// What co_spawn() does when a coroutine has ended that nobody waits for: its exception comes out of the context's
/// run().
inline void rethrow(std::exception_ptr thrown) {
  if (thrown) std::rethrow_exception(std::move(thrown));
}

}  // namespace lockstep::internal::comm
