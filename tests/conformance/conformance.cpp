#include "tests/conformance/conformance.h"

#include <cstdlib>
#include <string_view>
#include <thread>

#include "tests/support/seed.h"

namespace hora::internal::test {
namespace {

/// Salts of values are below.
constexpr std::uint64_t kOwnSalt = 1'000'000'000;

/// Whose body the thread runs.
thread_local Member* running = nullptr;

std::chrono::microseconds longest_pause() {
  const char* text = std::getenv("TEST_LONGEST_PAUSE");
  return std::chrono::microseconds(text == nullptr ? 0 : std::stol(text));
}

}  // namespace

Conformance::Conformance() : longest_pause_(longest_pause()), ranks_(Ranks::make()) {}

void Conformance::SetUp() {
  for (int index = 1; index < ranks_->count(); ++index) {
    others_.emplace_back([this, index] { run_here(index); });
  }
  running = &first_.emplace(member(0));
}

void Conformance::TearDown() {
  running = nullptr;
  first_.reset();
  others_.clear();
  EXPECT_EQ(ranks_->complaints(), "");
}

Member Conformance::member(int index) {
  Member result{ranks_->start(index, {}), ranks_->device(index)};
  result.own_random = generator_of(result.context.rank(), kOwnSalt);
  return result;
}

/// As GoogleTest runs it for the first.
void Conformance::run_here(int index) {
  Member own = member(index);
  running = &own;
  try {
    TestBody();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "on rank " << index << ": " << error.what();
  }
}

Member& Conformance::here() {
  return *running;
}

std::mt19937_64 Conformance::generator_of(int rank, std::uint64_t salt) {
  return generator(salt * 1000 + static_cast<std::uint64_t>(rank));
}

const Member& Conformance::this_member() {
  if (longest_pause_.count() > 0) {
    const auto longest = static_cast<std::uint64_t>(longest_pause_.count());
    std::this_thread::sleep_for(std::chrono::microseconds(here().own_random() % (longest + 1)));
  }
  return here();
}

ProcessSet Conformance::add_even_and_odd() {
  ProcessSet own = kWorld;
  for (int first = 0; first < std::min(2, size()); ++first) {
    std::vector<int> ranks;
    for (int r = first; r < size(); r += 2) ranks.push_back(r);
    const ProcessSet set = add_process_set(world(), ranks);
    if (rank() % 2 == first) own = set;
  }
  return own;
}

void Conformance::expect_same_text(const std::string& text) {
  for (const std::string& theirs :
       allgather_object(world(), std::string_view(text), {.name = "same text"})) {
    EXPECT_EQ(theirs, text);
  }
}

void Conformance::expect_mismatch(const Disagreement& about, const std::string& name,
                                  int odd_rank) {
  const std::string text =
      expect_error(ErrorCode::mismatch, [&] { about.submit(name, rank() == odd_rank); }).what();
  for (const std::string& word : about.words) {
    EXPECT_NE(text.find(word), std::string::npos) << "no '" << word << "' in: " << text;
  }
  EXPECT_NE(text.find("\"" + name + "\""), std::string::npos) << text;
  if (size() > 2) {  // of two, either is the odd one
    EXPECT_NE(text.find("rank " + std::to_string(odd_rank) + ": "), std::string::npos) << text;
  }
  expect_same_text(text);
}

void Conformance::expect_disagreement(const Disagreement& about,
                                      const std::function<void(const std::string& name)>& right) {
  if (size() == 1) return;
  for (int odd_rank = 0; odd_rank < size(); ++odd_rank) {
    SCOPED_TRACE("odd rank " + std::to_string(odd_rank));
    const std::string name = "odd" + std::to_string(odd_rank);
    expect_mismatch(about, name, odd_rank);  // a name never seen, or known from another case
    right(name);
    right(name);  // in the cache now
    expect_mismatch(about, name, odd_rank);
    expect_mismatch(about, name, (odd_rank + 1) % size());
    right(name);
  }
}

}  // namespace hora::internal::test
