/// Start-up's collectives between ranks that are threads of one process.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "ops/cross/point_to_point.h"

namespace hora::internal::test {

/// Where the ranks of one group meet. Thread rule: any thread.
class BootstrapRoom {
 public:
  /// `hosts[r]`: the number of rank r's host.
  explicit BootstrapRoom(std::vector<int> hosts);

  int size() const { return static_cast<int>(hosts_.size()); }
  const std::vector<int>& hosts() const { return hosts_; }
  /// Every rank's bytes, once each has given some.
  std::vector<std::vector<std::byte>> meet(int rank, std::span<const std::byte> bytes);
  /// The room of the ranks of one host.
  std::shared_ptr<BootstrapRoom> of_host(int host);

 private:
  const std::vector<int> hosts_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::vector<std::byte>> given_, complete_;
  int present_ = 0;
  int rounds_ = 0;
  std::map<int, std::shared_ptr<BootstrapRoom>> of_host_;
};

/// Thread rule: as Bootstrap.
class ThreadBootstrap final : public Bootstrap {
 public:
  ThreadBootstrap(std::shared_ptr<BootstrapRoom> room, int rank)
      : Bootstrap(rank, room->size()), room_(std::move(room)) {}

  std::vector<std::vector<std::byte>> all_gather(std::span<const std::byte> bytes) override {
    return room_->meet(rank(), bytes);
  }
  std::unique_ptr<Bootstrap> of_host() override;

 private:
  std::shared_ptr<BootstrapRoom> room_;
};

/// Runs `rank` once for each host's number in `hosts`, each in a thread of its own.
void run_ranks(const std::vector<int>& hosts, const std::function<void(Bootstrap&)>& rank);

}  // namespace hora::internal::test
