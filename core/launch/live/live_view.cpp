#include "core/launch/live/live_view.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>

namespace hora::launch {
namespace {

void write_all(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(descriptor, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return;  // the reader is gone
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
}

}  // namespace

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
  write_all(options_.descriptor, "\r\x1b[" + std::to_string(drawn_lines_) + "A\x1b[J");
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
