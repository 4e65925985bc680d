#include "tests/support/model/memory.h"

#include <algorithm>

namespace hora::internal::model {
namespace {

bool acquires(std::memory_order order) {
  return order != std::memory_order_relaxed && order != std::memory_order_release;
}
bool releases(std::memory_order order) {
  return order != std::memory_order_relaxed && order != std::memory_order_acquire &&
         order != std::memory_order_consume;
}

}  // namespace

template <class Values>
void Memory::join(Values& into, const Values& other) {
  if (into.size() < other.size()) into.resize(other.size());
  for (std::size_t i = 0; i < other.size(); ++i) into[i] = std::max(into[i], other[i]);
}

void Memory::raise(View& view, std::size_t word, std::size_t place) {
  if (view.size() <= word) view.resize(word + 1);
  view[word] = std::max(view[word], place);
}

std::size_t Memory::word_of(const void* address, std::optional<std::uint64_t> initial) {
  const auto [entry, fresh] = indices_.try_emplace(address, words_.size());
  if (fresh) words_.push_back({address, {{}}});
  Word& word = words_[entry->second];
  if (initial && word.history.size() == 1) word.history.front().value = *initial;
  return entry->second;
}

std::set<const void*> Memory::addresses() const {
  std::set<const void*> addresses;
  for (const Word& word : words_) addresses.insert(word.address);
  return addresses;
}

std::memory_order Memory::weakened(std::size_t word, std::memory_order order) const {
  const void* const address = words_[word].address;
  if (options_.relaxed.contains(address)) return std::memory_order_relaxed;
  if (order == std::memory_order_seq_cst && options_.without_total_order.contains(address)) {
    return std::memory_order_acq_rel;
  }
  return order;
}

void Memory::see(std::size_t thread, std::size_t word, std::size_t place, std::memory_order order) {
  Knowledge& own = knowledge_[thread];
  raise(own.view, word, place);
  if (!acquires(order)) return;
  join(own.view, words_[word].history[place].passed_on.view);
  join(own.clock, words_[word].history[place].passed_on.clock);
}

void Memory::see_newest(std::size_t thread, std::size_t word) {
  raise(knowledge_[thread].view, word, newest_place(word));
}

std::size_t Memory::load(std::size_t thread, std::size_t word, std::memory_order order,
                         const std::function<std::size_t(std::size_t)>& choose) {
  order = weakened(word, order);
  std::size_t first = earliest(knowledge_[thread].view, word);
  if (order == std::memory_order_seq_cst) first = std::max(first, words_[word].last_seq_cst);
  const std::size_t place = newest_place(word) - choose(newest_place(word) - first + 1);
  see(thread, word, place, order);
  return place;
}

void Memory::load_update(std::size_t thread, std::size_t word, std::memory_order order) {
  see(thread, word, newest_place(word), weakened(word, order));
}

void Memory::store(std::size_t thread, std::size_t word, std::uint64_t value,
                   std::memory_order order, bool update) {
  order = weakened(word, order);
  Knowledge& own = knowledge_[thread];
  ++own.clock[thread];
  const std::size_t place = newest_place(word) + 1;
  Store next{value, {}};
  // A read-modify-write passes on what the store before it has passed on.
  if (update) next.passed_on = words_[word].history.back().passed_on;
  raise(own.view, word, place);
  if (releases(order)) {
    join(next.passed_on.view, own.view);
    join(next.passed_on.clock, own.clock);
  } else {
    raise(next.passed_on.view, word, place);
  }
  words_[word].history.push_back(std::move(next));
  if (order == std::memory_order_seq_cst) words_[word].last_seq_cst = place;
}

bool Memory::read_plain(std::size_t thread, const void* address) {
  PlainData& data = plain_[address];
  Clock& own = knowledge_[thread].clock;
  data.read_at.resize(knowledge_.size());
  data.read_at[thread] = ++own[thread];
  return data.written_at == 0 || data.writer == thread || own[data.writer] >= data.written_at;
}

bool Memory::write_plain(std::size_t thread, const void* address) {
  PlainData& data = plain_[address];
  Clock& own = knowledge_[thread].clock;
  data.read_at.resize(knowledge_.size());
  bool ordered =
      data.written_at == 0 || data.writer == thread || own[data.writer] >= data.written_at;
  for (std::size_t t = 0; t < knowledge_.size(); ++t) {
    ordered &= t == thread || own[t] >= data.read_at[t];
  }
  data.writer = thread;
  data.written_at = ++own[thread];
  return ordered;
}

void Memory::share_knowledge() {
  for (Knowledge& knowledge : knowledge_) {
    join(knowledge.view, knowledge_.front().view);
    join(knowledge.clock, knowledge_.front().clock);
  }
}

}  // namespace hora::internal::model
