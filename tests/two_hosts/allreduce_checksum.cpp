// Sums one tensor over all ranks and prints a checksum of the result's bits.
// Usage: two_hosts_allreduce BYTES (a multiple of 4)
#include <hora/hora.h>

#include <bit>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

namespace {

// SplitMix64 (Steele, Lea, Flood 2014): the same numbers on every machine.
std::uint64_t mix(std::uint64_t state) {
  state += 0x9e3779b97f4a7c15U;
  state = (state ^ (state >> 30U)) * 0xbf58476d1ce4e5b9U;
  state = (state ^ (state >> 27U)) * 0x94d049bb133111ebU;
  return state ^ (state >> 31U);
}

// Within [-1, 1], with fractions that make the sum depend on its order.
float value_of(int rank, std::size_t index) {
  const std::uint64_t bits = mix((static_cast<std::uint64_t>(rank) << 40U) + index);
  return static_cast<float>(static_cast<std::int64_t>(bits)) * 0x1p-63F;
}

}  // namespace

int main(int argc, char** argv) {
  hora::Context world = hora::init(argc, argv);
  if (argc != 2 || std::atoll(argv[1]) <= 0 || std::atoll(argv[1]) % 4 != 0) {
    std::cerr << "usage: two_hosts_allreduce BYTES (a positive multiple of 4)\n";
    std::exit(2);
  }
  const std::size_t count = static_cast<std::size_t>(std::atoll(argv[1])) / sizeof(float);
  std::vector<float> values(count);
  for (std::size_t index = 0; index < count; ++index) {
    values[index] = value_of(world.rank(), index);
  }
  hora::allreduce(world, hora::view(values.data(), static_cast<std::int64_t>(count)),
                  {.name = "values", .op = hora::ReduceOp::sum});

  int failed = 0;
  std::uint64_t checksum = 0;
  for (std::size_t index = 0; index < count; ++index) {
    double expected = 0.0;
    for (int rank = 0; rank < world.size(); ++rank) {
      expected += value_of(rank, index);
    }
    // Each of size - 1 float additions rounds by at most 2^-24 of a value below size.
    const double bound = world.size() * world.size() * 0x1p-24;
    if (!(values[index] >= expected - bound && values[index] <= expected + bound) && failed == 0) {
      std::cerr << "rank " << world.rank() << ": value " << index << " is " << values[index]
                << ", expected " << expected << '\n';
      failed = 1;
    }
    checksum = mix(checksum ^ std::bit_cast<std::uint32_t>(values[index]));
  }

  auto of_rank_0 = static_cast<std::int64_t>(checksum);
  hora::broadcast(world, hora::view(&of_rank_0, 1), {.name = "checksum"});
  if (of_rank_0 != static_cast<std::int64_t>(checksum)) {
    std::cerr << "rank " << world.rank() << " has other bits than rank 0\n";
    failed = 1;
  }
  if (world.rank() == 0) {
    std::cout << "ranks " << world.size() << " nodes " << world.cross_size() << '\n'
              << "result " << checksum << std::endl;
  }
  world.shutdown();
  return failed;
}
