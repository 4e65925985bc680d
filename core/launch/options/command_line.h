/// From horarun's arguments, config file and environment to checked options.
#pragma once

#include <span>
#include <string>
#include <tl/expected.hpp>

#include "core/launch/options/launch_options.h"
#include "core/launch/options/usage_error.h"

namespace hora::launch {

/// `arguments` without the program's own name; `environment` has entries "NAME=VALUE", as
/// `environ`.
///
/// The command line wins over the config file, that over the environment. An option of one value
/// that is given several times has the last one. Reads the hostfile and the config file, nothing
/// else; has no side effects. With --help, --version, --man, --completion or --check-build the rest
/// but --mpirun is not looked at.
tl::expected<LaunchOptions, UsageError> parse_command_line(
    std::span<const std::string> arguments, std::span<const char* const> environment);

}  // namespace hora::launch
