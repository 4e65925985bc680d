// hora is started and shut down a hundred times in one process, on one MPI: nothing grows.
#include <gtest/gtest.h>
#include <hora/hora.h>
#include <mpi.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

namespace hora::internal {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kFreedMemoryStays = true;
#else
constexpr bool kFreedMemoryStays = false;
#endif

std::multiset<std::string> descriptors() {
  std::multiset<std::string> open;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // the folder's own
    open.insert(std::filesystem::read_symlink(entry.path(), gone).string());
  }
  return open;
}

/// A line of /proc/self/status: a count, or KiB.
std::int64_t status_of(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key + ":")) continue;
    return std::stoll(line.substr(key.size() + 1));
  }
  ADD_FAILURE() << "no " << key;
  return 0;
}

std::size_t mappings() {
  std::ifstream file("/proc/self/maps");
  return static_cast<std::size_t>(
      std::count(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>(), '\n'));
}

struct Held {
  std::multiset<std::string> descriptors;
  std::int64_t threads = 0;
  std::int64_t memory = 0;  ///< KiB, without pages of files: code is mapped as it is first run
  std::size_t mappings = 0;
};

Held held() {
  return {descriptors(), status_of("Threads"), status_of("RssAnon") + status_of("RssShmem"),
          mappings()};
}

/// Uses all that init() makes: the engine's thread, windows, a process set, communicators.
void use_hora(int round) {
  Context world = init();
  std::vector<int> all;
  for (int r = 0; r < world.size(); ++r) all.push_back(r);
  const ProcessSet set = add_process_set(world, all);
  std::vector<float> values(5000, 1.0F);
  for (const ProcessSet where : {kWorld, set}) {
    allreduce(world, view(values), {.name = "g", .op = ReduceOp::sum, .process_set = where});
    (void)allgather(world, view(values), {.name = "a", .process_set = where});
  }
  EXPECT_EQ(values.front(), static_cast<float>(world.size() * world.size()));
  if (round % 2 == 0) remove_process_set(world, set);
  if (round % 3 == 0) return;  // the destructor shuts down
  world.shutdown();
}

TEST(ManyInits, NothingGrows) {
  constexpr int kBefore = 20, kRounds = 100;  // before: pools of MPI and of the allocator fill
  Held before;
  for (int round = 0; round < kBefore + kRounds; ++round) {
    if (round == kBefore) before = held();
    use_hora(round);
  }
  const Held after = held();
  EXPECT_EQ(after.descriptors, before.descriptors);
  EXPECT_EQ(after.threads, before.threads);
  if (kFreedMemoryStays) return;
  EXPECT_LE(after.mappings, before.mappings + 2);
  EXPECT_LE(after.memory, before.memory + 128) << "KiB";
}

}  // namespace
}  // namespace hora::internal
