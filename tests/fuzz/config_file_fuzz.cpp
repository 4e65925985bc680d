// Any config file: refused with a line, or options that are applied or refused with a reason. Files
// that it names are not read.
#include "core/launch/options/config_file.h"
#include "core/launch/options/launch_options.h"
#include "tests/fuzz/require.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace hora::launch;
  const auto occurrences = parse_config(std::string(data, data + size), "job.yaml");
  if (!occurrences) {
    HORA_REQUIRE(to_text(occurrences.error()).starts_with("job.yaml"));
    return 0;
  }
  LaunchOptions options;
  for (const Occurrence& occurrence : *occurrences) {
    const OptionRow& row = *occurrence.row;
    HORA_REQUIRE(row.standing != Standing::refused && !row.on_command_line_only);
    if (!row.apply || row.name == "hostfile") continue;
    const auto applied = row.apply(options, occurrence.value);
    HORA_REQUIRE(applied || !applied.error().empty());
  }
  options.program = {"./train"};
  const auto completed = complete(options, {});
  HORA_REQUIRE(completed || !to_text(completed.error()).empty());
  if (completed && !options.hosts.empty()) {
    HORA_REQUIRE(lay_out_ranks(options.hosts, options.np.value(), options.oversubscribe));
  }
  return 0;
}
