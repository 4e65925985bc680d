/// The types of the node's shared memory, and the memory order by which no wake-up is lost.
#pragma once

#include <atomic>

#if defined(HORA_ATOMIC_HEADER)
#include HORA_ATOMIC_HEADER
#else

namespace hora::internal {

/// std::atomic; in tests that explore every order of accesses that of tests/support/model.
template <class T>
using Atomic = std::atomic<T>;
/// Data that one rank writes and others read, ordered by the atomics beside it.
template <class T>
using Plain = T;

}  // namespace hora::internal

#endif

namespace hora::internal {

/// A waker stores the work, then loads the sleeper's flag; a sleeper stores that it sleeps, then
/// loads the work. One of the two must see the other, which is store-then-load order on both sides:
///
///   waker:  store the work       store that it sleeps   :sleeper
///           load who sleeps      load the work
///
/// Acquire and release do not give it: both loads may come before both stores. So all four, of
/// every word that a sleeper looks at or that says that one sleeps, have this order:
/// - wake-up words, the flags of sleepers and of progress threads (WakeupFlags);
/// - pending work: SequenceRingEntry::sequence, MailboxHead::written, ReadyWords,
///   RankCell::done, RankCell::awaited, which says what is waited for, and who has joined.
/// Words that are only polled (positions of readers, progress of units, rounds of exchanges)
/// need no more than acquire and release. The test node_control_block_model runs sleepers and
/// wakers in every order, and finds the lost wake-up where the work or the flag lacks this one.
inline constexpr std::memory_order kWakeOrder = std::memory_order_seq_cst;

}  // namespace hora::internal
