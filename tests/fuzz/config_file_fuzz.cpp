// Any config file: refused with its place, or options onto whose hosts the ranks can be laid.
#include <sys/mman.h>
#include <unistd.h>

#include "core/launch/options/options.h"
#include "tests/fuzz/require.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace hora::launch;
  static const int file = ::memfd_create("job.yaml", 0);
  HORA_REQUIRE(::ftruncate(file, 0) == 0);
  HORA_REQUIRE(::pwrite(file, data, size, 0) == static_cast<ssize_t>(size));
  const std::string path = "/proc/self/fd/" + std::to_string(file);
  const std::string arguments[] = {"--config-file", path, "./train"};
  const auto options = parse_command_line(arguments, {});
  if (has_value_or_reason(options) && !options->hosts.empty()) {
    HORA_REQUIRE(lay_out_ranks(options->hosts, options->np.value(), options->oversubscribe));
  }
  return 0;
}
