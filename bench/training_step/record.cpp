#include "bench/training_step/record.h"

#include <hora/hora.h>

#include <array>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <utility>

#include "bench/training_step/contender.h"
#include "bench/training_step/step_times.h"

namespace bench {

std::vector<Measurement> measure_record(hora::Context& world, const Ranks& ranks,
                                        const StepOptions& options) {
  constexpr const char* variable = "HORARUN_RECORD";
  std::array<StepTimes, 2> times;  // watched, off
  for (int block = 0; block < 2 * options.blocks; ++block) {
    // There and back: what drifts concerns both.
    const std::size_t is_off = block % 4 == 1 || block % 4 == 2 ? 1 : 0;
    ::setenv(variable, is_off != 0 ? "off" : "watched", 1);
    world.shutdown();
    world = hora::init();
    Network network = make_network(options.network, options.batch, 1);
    const Surroundings surroundings{world, ranks, options.bucket_bytes};
    const auto contender = contender_kind("hora_copies").make(surroundings, network);
    StepTimes warm_up;
    time_block(world, warm_up_steps, 1, warm_up, network, *contender);
    time_block(world, options.steps, options.blocks, times[is_off], network, *contender);
  }
  ::unsetenv(variable);
  world.shutdown();
  world = hora::init();
  std::vector<Measurement> result{measurement_of(ranks, times[0]), measurement_of(ranks, times[1])};
  add_ratios(ranks, times[0], times[1], "off", result[0]);
  return result;
}

}  // namespace bench
