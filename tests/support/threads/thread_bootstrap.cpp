#include "tests/support/threads/thread_bootstrap.h"

#include <algorithm>
#include <thread>
#include <utility>

namespace hora::internal::test {

BootstrapRoom::BootstrapRoom(std::vector<int> hosts)
    : hosts_(std::move(hosts)), given_(hosts_.size()) {}

std::vector<std::vector<std::byte>> BootstrapRoom::meet(int rank,
                                                        std::span<const std::byte> bytes) {
  std::unique_lock lock(mutex_);
  given_[static_cast<std::size_t>(rank)].assign(bytes.begin(), bytes.end());
  const int round = rounds_;
  if (++present_ == size()) {
    complete_ = given_;
    present_ = 0;
    ++rounds_;
    changed_.notify_all();
  }
  // The next round is complete only when this rank has given something for it.
  changed_.wait(lock, [&] { return rounds_ != round; });
  return complete_;
}

std::shared_ptr<BootstrapRoom> BootstrapRoom::of_host(int host) {
  const std::lock_guard lock(mutex_);
  auto& room = of_host_[host];
  if (!room) {
    const auto ranks = static_cast<std::size_t>(std::ranges::count(hosts_, host));
    room = std::make_shared<BootstrapRoom>(std::vector<int>(ranks, host));
  }
  return room;
}

std::unique_ptr<Bootstrap> ThreadBootstrap::of_host() {
  const auto& hosts = room_->hosts();
  const int host = hosts[static_cast<std::size_t>(rank())];
  const auto before = std::count(hosts.begin(), hosts.begin() + rank(), host);
  return std::make_unique<ThreadBootstrap>(room_->of_host(host), static_cast<int>(before));
}

void run_ranks(const std::vector<int>& hosts, const std::function<void(Bootstrap&)>& rank) {
  const auto room = std::make_shared<BootstrapRoom>(hosts);
  std::vector<std::jthread> threads;
  for (int r = 0; r < room->size(); ++r) {
    threads.emplace_back([&rank, room, r] {
      ThreadBootstrap bootstrap(room, r);
      rank(bootstrap);
    });
  }
}

}  // namespace hora::internal::test
