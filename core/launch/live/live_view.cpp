#include "core/launch/live/live_view.h"

#include <hora/printable.h>
#include <spdlog/fmt/fmt.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <numeric>
#include <string_view>

#include "core/flight/flight_recorder.h"
#include "core/launch/guard/guard.h"

namespace hora::launch {
namespace {

using internal::RecordState;

/// A rank that has done nothing for longer is said to.
constexpr std::uint64_t kIdleMilliseconds = 5000;
constexpr std::size_t kWidestCell = 32;
/// Above the ranks: of the job, and of headings.
constexpr std::size_t kTopLines = 2;
const std::vector<std::string> kHeadings{"rank",  "host",   "collectives", "last collective",
                                         "last",  "median", "p99",         "lost in",
                                         "state", "doing"};

bool is_text(std::size_t column) {
  return column == 1 || column == 3 || column >= 7;
}

std::string milliseconds_text(std::int64_t nanoseconds) {
  return fmt::format("{:.3g} ms", static_cast<double>(nanoseconds) / 1e6);
}

/// True for a byte of UTF-8 that begins a character.
bool begins(char c) {
  return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
}

/// Characters of a text in UTF-8.
std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(text, begins));
}

/// The first characters.
std::string cut(std::string_view text, std::size_t most) {
  std::size_t width = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (begins(text[i]) && width++ == most) return std::string(text.substr(0, i));
  }
  return std::string(text);
}

/// Names differ at their ends: of long ones the beginning is left out.
std::string cut_front(const std::string& text, std::size_t most) {
  std::string_view rest = text;
  while (width_of(rest) > most) {
    rest.remove_prefix(1);
    while (!rest.empty() && !begins(rest.front())) rest.remove_prefix(1);
  }
  return std::string(rest);
}

std::string line_of(const std::vector<std::string>& cells, const std::vector<std::size_t>& widths,
                    std::size_t columns) {
  std::string line;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const std::string padding(widths[i] - width_of(cells[i]), ' ');
    line += (i > 0 ? "  " : "") + (is_text(i) ? cells[i] + padding : padding + cells[i]);
  }
  line = cut(line, columns);
  line.erase(line.find_last_not_of(' ') + 1);
  return line + "\n";
}

std::string span_text(Moment length) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(length).count();
  if (seconds < 60) return fmt::format("{} s", seconds);
  return fmt::format("{} min {} s", seconds / 60, seconds % 60);
}

void write_all(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(descriptor, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return;  // the reader is gone
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
}

}  // namespace

LiveJob::LiveJob(const std::vector<JobHost>& hosts, Moment now) : start_(now) {
  for (const JobHost& host : hosts) {
    host_names_.push_back(printable(host.name));
    ranks_.resize(ranks_.size() + static_cast<std::size_t>(host.ranks),
                  Rank{.host = host_names_.back()});
  }
}

void LiveJob::on_message(std::size_t host, const Message& message, Moment now) {
  if (host >= host_names_.size()) return;
  if (const auto* const arrivals = std::get_if<ArrivalsSeen>(&message)) note(*arrivals, now);
  if (const auto* const started = std::get_if<RankStarted>(&message)) {
    Rank* const known = rank(started->rank);
    if (known) *known = Rank{.host = host_names_[host], .started = true};
  } else if (const auto* const seen = std::get_if<RankSeen>(&message)) {
    Rank* const known = rank(seen->rank);
    if (!known) return;
    known->seen = *seen;
    known->seen->collective = printable(seen->collective);
    known->seen->phase = printable(seen->phase);
  } else if (const auto* const stopped = std::get_if<RankStopped>(&message)) {
    if (Rank* const known = rank(stopped->rank)) known->stopped = stopped->stopped;
  } else if (const auto* const ended = std::get_if<RankEnded>(&message)) {
    if (Rank* const known = rank(ended->rank)) known->ended = true;
  }
}

LiveJob::Rank* LiveJob::rank(int number) {
  const bool exists = number >= 0 && static_cast<std::size_t>(number) < ranks_.size();
  return exists ? &ranks_[static_cast<std::size_t>(number)] : nullptr;
}

void LiveJob::note(const ArrivalsSeen& seen, Moment now) {
  const Moment since = now - arrivals_at_;
  const bool grows = arrivals_at_ != Moment(0) && seen.steps >= arrivals_.steps;
  if (grows && since > Moment(0)) {
    steps_a_second_ = static_cast<double>(seen.steps - arrivals_.steps) /
                      std::chrono::duration<double>(since).count();
  }
  arrivals_at_ = now;
  arrivals_ = seen;
  for (std::string& phase : arrivals_.phases) phase = printable(phase);
}

std::string LiveJob::state_of(const Rank& rank) {
  if (rank.ended) return "ended";
  if (rank.stopped) return "stopped";
  if (!rank.seen) return rank.started ? "started" : "not started";
  if (rank.seen->state == kNotBegun) return "before hora::init";
  switch (static_cast<RecordState>(rank.seen->state)) {
    case RecordState::starting:
      return "in hora::init";
    case RecordState::initialised:
      break;
    case RecordState::in_shutdown:
      return "in shutdown";
    case RecordState::shut_down:
      return "shut down";
    case RecordState::failed:
      return "failed";
    default:
      return "unknown";
  }
  const std::string idle = rank.seen->idle_ms < kIdleMilliseconds
                               ? ""
                               : ", idle " + span_text(Moment(rank.seen->idle_ms));
  return (rank.seen->waits ? "waits" : "runs") + idle;
}

const wire::ArrivalsRow* LiveJob::arrivals_of(std::size_t rank) const {
  const auto is_its = [&](const wire::ArrivalsRow& row) {
    return row.rank() >= 0 && static_cast<std::size_t>(row.rank()) == rank;
  };
  const auto found = std::ranges::find_if(arrivals_.rows, is_its);
  return found == arrivals_.rows.end() ? nullptr : &*found;
}

std::string LiveJob::phase_of(const wire::ArrivalsRow& row) const {
  return row.phase() < arrivals_.phases.size() ? arrivals_.phases[row.phase()] : "";
}

std::string LiveJob::share_of(const wire::ArrivalsRow& row) const {
  const auto all = static_cast<double>(std::max<std::uint64_t>(1, arrivals_.decisions));
  return fmt::format("{:.0f} %", 100 * static_cast<double>(row.last()) / all);
}

std::string LiveJob::progress(Moment now) const {
  const std::string text = span_text(now - start_);
  if (arrivals_at_ == Moment(0)) return text;
  const std::string rate =
      steps_a_second_ > 0 ? fmt::format(", {:.3g} a second", steps_a_second_) : "";
  return fmt::format("{}: step {}{}, {} decisions", text, arrivals_.steps, rate,
                     arrivals_.decisions);
}

std::string LiveJob::most_often_last() const {
  if (arrivals_.rows.empty() || arrivals_.rows.front().last() == 0) return {};
  const wire::ArrivalsRow& row = arrivals_.rows.front();
  if (row.rank() < 0 || static_cast<std::size_t>(row.rank()) >= ranks_.size()) return {};
  const std::string phase = phase_of(row);
  return fmt::format("; most often last: rank {} (host {}), {}, median {}, p99 {}{}", row.rank(),
                     ranks_[static_cast<std::size_t>(row.rank())].host, share_of(row),
                     milliseconds_text(row.median_ns()), milliseconds_text(row.p99_ns()),
                     phase.empty() ? "" : ", mostly in " + in_quotes(phase));
}

std::vector<std::string> LiveJob::cells_of(std::size_t number) const {
  const Rank& rank = ranks_[number];
  std::vector<std::string> cells(kHeadings.size());
  cells[0] = std::to_string(number);
  cells[1] = rank.host;
  if (rank.seen) {
    cells[2] = std::to_string(rank.seen->submitted);
    cells[3] = cut_front(rank.seen->collective, kWidestCell);
    cells[9] = cut(rank.seen->phase, kWidestCell);
  }
  if (const wire::ArrivalsRow* const row = arrivals_of(number)) {
    cells[4] = share_of(*row);
    if (row->last() > 0) {
      cells[5] = milliseconds_text(row->median_ns());
      cells[6] = milliseconds_text(row->p99_ns());
      cells[7] = cut(phase_of(*row), kWidestCell);
    }
  }
  cells[8] = state_of(rank);
  return cells;
}

std::vector<std::size_t> LiveJob::shown(std::size_t most) const {
  std::vector<std::size_t> ranks(ranks_.size());
  std::iota(ranks.begin(), ranks.end(), std::size_t{0});
  if (ranks.size() <= most) return ranks;
  std::vector<std::uint64_t> last(ranks_.size());
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    const wire::ArrivalsRow* const row = arrivals_of(rank);
    if (row) last[rank] = row->last();
  }
  std::ranges::stable_sort(ranks, [&](std::size_t a, std::size_t b) { return last[a] > last[b]; });
  ranks.resize(most);
  std::ranges::sort(ranks);
  return ranks;
}

std::string LiveJob::table(TableSize size, Moment now) const {
  // The last row stays free, for the cursor.
  const std::size_t place = std::max(size.rows, kTopLines + 3) - 1 - kTopLines;
  const auto ranks = shown(ranks_.size() <= place ? place : place - 1);
  std::vector<std::vector<std::string>> lines{kHeadings};
  for (const std::size_t rank : ranks) lines.push_back(cells_of(rank));
  std::vector<std::size_t> widths(kHeadings.size());
  for (const auto& cells : lines) {
    for (std::size_t i = 0; i < cells.size(); ++i) {
      widths[i] = std::max(widths[i], width_of(cells[i]));
    }
  }
  std::string text = cut(progress(now) + most_often_last(), size.columns) + "\n";
  for (const auto& cells : lines) text += line_of(cells, widths, size.columns);
  if (ranks.size() < ranks_.size()) {
    text +=
        cut(fmt::format("and {} more ranks", ranks_.size() - ranks.size()), size.columns) + "\n";
  }
  return text;
}

std::string LiveJob::line(Moment now) const {
  // Ranks in one state are counted; a rank that is alone in its own is named.
  std::map<std::string, std::vector<std::size_t>> states;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    const std::string state = state_of(ranks_[rank]);
    states[state.substr(0, state.find(','))].push_back(rank);
  }
  std::string text = progress(now) + most_often_last();
  for (const auto& [state, ranks] : states) {
    text += ranks.size() == 1 ? fmt::format("; {}: rank {}", state, ranks.front())
                              : fmt::format("; {}: {} ranks", state, ranks.size());
  }
  return text;
}

LiveView::LiveView(const LiveOptions& options, const std::vector<JobHost>& hosts, Moment now)
    : options_(options),
      job_(hosts, now),
      next_(now + std::chrono::duration_cast<Moment>(options.interval)) {}

TableSize LiveView::size() const {
  winsize window{};
  if (::ioctl(options_.descriptor, TIOCGWINSZ, &window) != 0 || window.ws_col == 0) return {};
  return {window.ws_row, window.ws_col};
}

void LiveView::erase() {
  if (drawn_lines_ == 0) return;
  // ECMA-48: cursor up (CUU), erase to the end of the page (ED).
  write_all(options_.descriptor, fmt::format("\r\x1b[{}A\x1b[J", drawn_lines_));
  drawn_lines_ = 0;
}

void LiveView::on_time(bool in_line, Moment now) {
  const bool is_due = now >= next_;
  if (is_due) next_ = now + std::chrono::duration_cast<Moment>(options_.interval);
  if (options_.on_terminal) {
    if (is_due || drawn_lines_ == 0) draw(in_line, now);
  } else if (is_due) {
    write_all(options_.descriptor, "horarun: " + job_.line(now) + "\n");
  }
}

void LiveView::draw(bool in_line, Moment now) {
  const std::string table = job_.table(size(), now);
  const bool is_below_text = in_line && drawn_lines_ == 0;
  erase();
  write_all(options_.descriptor, (is_below_text ? "\n" : "") + table);
  drawn_lines_ = static_cast<std::size_t>(std::ranges::count(table, '\n'));
}

}  // namespace hora::launch
