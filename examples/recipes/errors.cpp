/// Errors: some are handled where they occur, all others are caught in main, where the program
/// ends. `errors end` shows the latter: a single rank fails, and the job ends with its reason.
#include <hora/hora.h>

#include <cstdint>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

// A mismatch is the same error on every rank, and the next collective is right: the program may go
// on. After an error of code transport it may not: the context is of no more use.
bool allreduce_fails(const hora::Context& world, const hora::TensorView& values) {
  try {
    hora::allreduce(world, values, {.name = "values", .op = hora::ReduceOp::sum});
    return false;
  } catch (const hora::Error& error) {
    if (error.code() != hora::ErrorCode::mismatch) throw;
    if (world.rank() == 0) {
      std::cout << "a mismatch of " << error.tensor() << ": " << error.what() << std::endl;
    }
    return true;
  }
}

void run(const hora::Context& world, bool end) {
  std::vector<float> values(100, 1.0F);
  const std::int64_t count = world.rank() == 0 ? 100 : 99;
  const bool mismatch = allreduce_fails(world, hora::view(values.data(), count));
  const bool another = allreduce_fails(world, hora::view(values.data(), 100));
  if (mismatch != (world.size() > 1) || another || values[99] != static_cast<float>(world.size())) {
    throw std::logic_error("expected one mismatch, and then the right sum");
  }
  if (end && world.rank() == world.size() - 1) {
    throw std::runtime_error("no data on rank " + std::to_string(world.rank()));
  }
  hora::barrier(world);
}

int main(int argc, char** argv) {
  try {
    // In the try block: the context that an exception destroys does not wait for other ranks, but
    // ends the job with this process. After std::endl, which flushes, what was said is shown. A
    // rank that caught an error of its own further in and went on would leave the others waiting.
    const hora::Context world = hora::init(argc, argv);
    run(world, argc > 1 && argv[1] == std::string("end"));
    return 0;
  } catch (const hora::Error& error) {
    const std::string where = error.rank() < 0 ? "" : " on rank " + std::to_string(error.rank());
    std::cerr << "errors: " << hora::name_of(error.code()) << where << ": " << error.what()
              << std::endl;
  } catch (const std::exception& error) {
    std::cerr << "errors: " << hora::printable(error.what()) << std::endl;
  }
  return 1;
}
