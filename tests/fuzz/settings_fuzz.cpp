// Any environment: refused with a reason, or settings that are the same when they are written out.
#include <hora/error.h>
#include <hora/settings.h>

#include <string>
#include <vector>

#include "tests/fuzz/require.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace hora;
  std::vector<std::string> entries{{}};
  for (std::size_t i = 0; i < size; ++i) {
    if (data[i] == '\n') {
      entries.emplace_back();
    } else if (data[i] != 0) {
      entries.back() += static_cast<char>(data[i]);
    }
  }
  std::vector<const char*> environment;
  for (const std::string& entry : entries) environment.push_back(entry.c_str());
  try {
    const Settings settings = parse_settings(setting_assignments(environment));
    const auto written = to_assignments(settings);
    HORA_REQUIRE(to_assignments(parse_settings(written)) == written);
  } catch (const Error& error) {
    HORA_REQUIRE(error.code() == ErrorCode::invalid_setting);
  }
  return 0;
}
