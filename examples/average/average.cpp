/// Averages plain memory over all ranks, without LibTorch: horarun -np 4 average
#include <hora/hora.h>

#include <cstdint>
#include <iostream>
#include <vector>

int main(int argc, char** argv) {
  hora::Context world = hora::init(argc, argv);

  // On every rank its own values: rank, rank + 1, rank + 2, ...
  std::vector<float> values(1000);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(world.rank()) + static_cast<float>(i);
  }

  hora::allreduce(world, hora::view(values.data(), std::int64_t{1000}), {.name = "values"});

  if (world.rank() == 0) {
    std::cout << "the average of " << world.size() << " ranks is " << values[0] << ", " << values[1]
              << ", ..., " << values[999] << '\n';
  }
}
