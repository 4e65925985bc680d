// hora is started and shut down a hundred times in one process, on one MPI: nothing grows.
#include <gtest/gtest.h>
#include <hora/hora.h>
#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace hora::internal {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kFreedMemoryStays = true;
#else
constexpr bool kFreedMemoryStays = false;
#endif

std::int64_t entries_of(const char* folder) {
  return std::distance(std::filesystem::directory_iterator(folder), {});
}

/// Descriptors, threads, mappings; KiB, without pages of files: code is mapped as it is first run.
std::array<std::int64_t, 4> held() {
  std::ifstream maps("/proc/self/maps"), status("/proc/self/status");
  const auto mappings = std::count(std::istreambuf_iterator<char>(maps), {}, '\n');
  std::int64_t memory = 0, kib = 0;
  for (std::string name; status >> name;) {
    if ((name == "RssAnon:" || name == "RssShmem:") && status >> kib) memory += kib;
  }
  return {entries_of("/proc/self/fd"), entries_of("/proc/self/task"), mappings, memory};
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
  std::array<std::int64_t, 4> before{};
  for (int round = 0; round < kBefore + kRounds; ++round) {
    if (round == kBefore) before = held();
    use_hora(round);
  }
  const auto [descriptors, threads, mappings, memory] = held();
  EXPECT_EQ(descriptors, before[0]);
  EXPECT_EQ(threads, before[1]);
  if (kFreedMemoryStays) return;
  EXPECT_LE(mappings, before[2] + 2);
  EXPECT_LE(memory, before[3] + 128) << "KiB";
}

}  // namespace
}  // namespace hora::internal
