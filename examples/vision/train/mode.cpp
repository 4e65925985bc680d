#include "examples/vision/train/mode.h"

#include <stdexcept>
#include <string>

namespace vision {

void check_mode(Mode mode, int ranks) {
  if (mode == Mode::distributed || ranks == 1) return;
  const bool single = mode == Mode::single;
  throw std::runtime_error(
      std::string("--mode ") + (single ? "single" : "data-parallel") + " trains in one process" +
      (single ? "" : ", with all its GPUs") + ", and this job has " + std::to_string(ranks) +
      " ranks; start the program by itself, without horarun or mpirun, or take --mode distributed");
}

}  // namespace vision
