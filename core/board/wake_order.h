/// The order of accesses that nobody's sleep is lost by.
#pragma once

#include <atomic>

namespace hora {

/// Whoever brings news stores it and then looks who sleeps; whoever goes to sleep says so and then
/// looks for news. One of the two must see the other, which is store-then-load order on both sides:
///
///   brings:  store the news       store that I sleep   :sleeps
///            load who sleeps      load the news
///
/// Acquire and release do not give it: both loads may come before both stores. So all four, of
/// every word that a sleeper looks at or that says that one sleeps, have this order:
/// - wake-up words, who sleeps and who drives (Bells);
/// - news: SequenceRingEntry::sequence, MailboxHead::written, IdCell::ready, RankCell::done, and
///   RankCell::awaited, which says what news is wanted (likewise IdCell::watched, and who has
///   joined).
/// Words that are only polled (positions of readers, trails of broadcasts, rounds of exchanges)
/// need no more than acquire and release. The test board_model runs sleepers and wakers in every
/// order, and finds the one that nobody wakes where news, or who sleeps, is without this order.
inline constexpr std::memory_order kWakeOrder = std::memory_order_seq_cst;

}  // namespace hora
