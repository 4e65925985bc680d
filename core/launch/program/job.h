/// A job as horarun carries it out, made from its options.
#pragma once

#include <string>
#include <tl/expected.hpp>

#include "core/launch/command/command.h"
#include "core/launch/options/options.h"
#include "core/launch/rendezvous/rendezvous.h"
#include "core/launch/supervisor/launcher.h"

namespace hora::launch {

struct Job {
  LauncherOptions launcher;
  Command mpirun;                         ///< for --dry-run: what the first agent starts
  std::vector<std::string> notices = {};  ///< lines for the user, before the start
};

/// Finds mpirun, lays the ranks onto the hosts, and writes the command lines. `self` is the path of
/// this program, which every host has. Errors say what is wrong and what to do.
/// `met`: the nodes, where they meet without ssh; this one is node 0.
tl::expected<Job, std::string> make_job(const LaunchOptions& options, const std::string& self,
                                        NodesMet met = {});

/// Text for --dry-run: one command a line.
std::string dry_run_text(const Job& job);

}  // namespace hora::launch
