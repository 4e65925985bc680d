#include "examples/vision/train/program.h"

#include <hora/hora.h>
#include <unistd.h>

#include <exception>
#include <iostream>
#include <optional>

#include "examples/vision/train/common_error.h"
#include "examples/vision/train/device.h"
#include "examples/vision/train/output_file.h"
#include "examples/vision/train/report.h"
#include "examples/vision/train/setup.h"
#include "examples/vision/train/stop_request.h"
#include "examples/vision/train/trainer.h"

namespace vision {
namespace {

int run(const hora::Context& world, const Program& program, const ParsedOptions& parsed,
        StopRequest& stop) {
  if (!parsed.options.has_value()) {
    if (world.rank() == 0) std::cerr << parsed.text;
    return parsed.exit_code;
  }
  const TrainingOptions& options = *parsed.options;
  share_cores(world);
  choose_algorithms(options.deterministic);
  std::optional<Setup> setup = prepare_everywhere(world, program, options);
  if (!setup.has_value()) return 1;
  Progress progress(world.rank() == 0 ? &std::cout : nullptr,
                    {.style = choose_style(options.output.progress, STDOUT_FILENO),
                     .every = options.output.print_freq,
                     .columns = [] { return terminal_columns(STDOUT_FILENO); }});
  const Report report = train(world, options, *setup, progress, &stop);
  if (report.stopped) return stopped_exit_code;
  if (world.rank() == 0 && !options.output.report.empty()) {
    write_file(options.output.report, to_json(report));
    progress.line("wrote the results to " + hora::printable(options.output.report));
  }
  return 0;
}

}  // namespace

int run_program(const Program& program, int argc, char** argv) {
  const ParsedOptions parsed = parse_options(program.description, program.defaults, argc, argv);
  if (!parsed.options.has_value() && parsed.exit_code == 0) {
    std::cout << parsed.text;
    return 0;
  }
  try {
    hora::Context world = hora::init(argc, argv);
    StopRequest stop(world);
    int exit_code = 1;
    try {
      exit_code = run(world, program, parsed, stop);
    } catch (const CommonError& error) {
      if (world.rank() == 0) {
        std::cerr << program.description.name << ": " << hora::printable(error.what()) << std::endl;
      }
    }
    stop.finish();
    world.shutdown();
    return exit_code;
  } catch (const std::exception& error) {
    // In one piece, for ranks may fail at the same time.
    std::cerr << program.description.name + ": " + hora::printable(error.what()) + "\n";
    return 1;
  }
}

}  // namespace vision
