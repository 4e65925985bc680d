/// What the node's shared memory is made of.
#pragma once

#if defined(HORA_ATOMIC_HEADER)
#include HORA_ATOMIC_HEADER
#else

#include <atomic>

namespace hora {

/// std::atomic; in tests of every order of every access (tests/support/model) their own.
template <class T>
using Atomic = std::atomic<T>;
/// Data that one rank writes and others read, ordered by the atomics beside it.
template <class T>
using Plain = T;

}  // namespace hora

#endif
