// Which exceptions say that a sample is damaged.
#pragma once

#include <exception>

namespace lockstep::internal::inline data {

/// Whether an exception that reading a sample has thrown is about the sample. It is not where this process had no
/// memory, or no file descriptor, left: the sample may be read another time, or by another worker. What the exception
/// was thrown for, std::nested_exception, counts too.
bool is_about_sample(const std::exception_ptr& error);

/// Whether a reader of records could not go on, so that the rest of its file is lost, and nobody knows how much that
/// is.
bool loses_rest(const std::exception_ptr& error);

}  // namespace lockstep::internal::data
