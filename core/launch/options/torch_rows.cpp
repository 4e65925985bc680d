// Rows of the option table: flags of torchrun (2.x) beyond those whose spelling hora shares.
#include "core/launch/options/option_table.h"
#include "core/launch/options/rendezvous.h"
#include "core/launch/options/text.h"

namespace hora::launch {
namespace {

using Unexpected = tl::unexpected<std::string>;

Applied set_endpoint(LaunchOptions& options, std::string_view text) {
  auto endpoint = parse_endpoint(text);
  if (!endpoint) return Unexpected(endpoint.error());
  options.rendezvous = std::move(*endpoint);
  return {};
}

/// --master-addr and --master-port are two halves of one endpoint.
Applied set_master_address(LaunchOptions& options, std::string_view text) {
  const auto port = options.rendezvous ? options.rendezvous->port : std::uint16_t{kMasterPort};
  auto endpoint = parse_endpoint(text);
  if (!endpoint) return Unexpected(endpoint.error());
  options.rendezvous = std::move(*endpoint);
  options.rendezvous->port = port;
  return {};
}

Applied set_master_port(LaunchOptions& options, std::string_view text) {
  const auto port = parse_integer(text, 0, 65535);
  if (!port) return Unexpected(port.error());
  if (!options.rendezvous) options.rendezvous.emplace();
  options.rendezvous->port = static_cast<std::uint16_t>(*port);
  return {};
}

Applied check_backend(LaunchOptions&, std::string_view text) {
  if (text == "c10d" || text == "static") return {};
  return Unexpected(
      "nodes meet at an address or in a shared folder: --rendezvous "
      "tcp://HOST:PORT or file:///FOLDER");
}

Applied check_restarts(LaunchOptions& options, std::string_view text) {
  if (text != "0") options.notices.emplace_back("--max-restarts: a failed job is not restarted");
  return {};
}

}  // namespace

std::vector<OptionRow> torch_rows() {
  const std::string files = "one file a rank is written by --output-filename FOLDER";
  const std::string no_module = "name the interpreter: horarun ... python -m MODULE";
  return {
      translated("rdzv-endpoint", {}, "HOST:PORT", "As --rendezvous tcp://HOST:PORT.", "rendezvous",
                 set_endpoint),
      translated("master-addr", {}, "HOST", "The address of --rendezvous.", "master-addr",
                 set_master_address),
      translated("master-port", {}, "PORT", "The port of --rendezvous.", "master-port",
                 set_master_port),
      translated("rdzv-backend", {}, "c10d|static", "", "rdzv-backend", check_backend),
      translated("max-restarts", {}, "N", "", "max-restarts", check_restarts),

      ignored("rdzv-conf", {}, "CONF", "the time limit of the start is --start-timeout"),
      ignored("standalone", {}, "", ""),
      ignored("no-python", {}, "", ""),
      ignored("use-env", {}, "", ""),
      ignored("role", {}, "NAME", ""),
      ignored("monitor-interval", {}, "SECONDS", ""),
      ignored("start-method", {}, "METHOD", ""),
      ignored("local-addr", {}, "ADDRESS", "addresses are chosen by --network-interfaces"),
      ignored("redirects", {"r"}, "SPEC", files),
      ignored("tee", {"t"}, "SPEC", files),
      ignored("log-dir", {}, "FOLDER", files),
      ignored("local-ranks-filter", {}, "RANKS", "the output of ranks is chosen by --ranks"),
      ignored("numa-binding", {}, "KIND", "cores are shared out by --binding"),

      refused("module", {"m"}, "", no_module),
      refused("run-path", {}, "", "name the program"),
  };
}

}  // namespace hora::launch
