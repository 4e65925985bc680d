// A user's program: averages ten values over all ranks.
#include <hora/hora.h>

#include <iostream>
#include <vector>

using namespace hora;

int main(int argc, char** argv) {
  Context world = init(argc, argv);
  std::vector<float> values(10, static_cast<float>(world.rank()));
  allreduce(world, view(values.data(), 10), {.name = "values"});

  const float expected = static_cast<float>(world.size() - 1) / 2.0F;
  for (const float value : values) {
    if (value != expected) {
      std::cerr << "rank " << world.rank() << ": average " << value << ", expected " << expected
                << '\n';
      return 1;
    }
  }
  world.shutdown();
}
