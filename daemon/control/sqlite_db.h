// A thin owner of one SQLite connection and its prepared statements. Not thread-safe: one
// connection a thread (or under one mutex).
//
// Errors: ResourceExhausted (disk full: path, bytes free), DataLoss (damaged file), Unavailable
// (busy for longer than 5 s), Internal (our own mistakes: constraint, misuse), each with SQLite's
// words.
#ifndef SOUP_DAEMON_CONTROL_SQLITE_DB_H_
#define SOUP_DAEMON_CONTROL_SQLITE_DB_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

struct sqlite3;
struct sqlite3_stmt;

namespace soup::daemon {

class SqliteDb;

// One run of a prepared statement; resets it when it dies. Bind in order, then Step.
class Query {
 public:
  Query(SqliteDb* db, sqlite3_stmt* stmt) : db_(db), stmt_(stmt) {}
  Query(Query&& other) noexcept;
  Query(const Query&) = delete;
  Query& operator=(const Query&) = delete;
  ~Query();

  Query& Int(int64_t value);
  Query& Text(absl::string_view value);
  Query& Blob(absl::string_view value);

  // True: a row is there. False: done.
  absl::StatusOr<bool> Step();
  // Runs a statement that yields no rows.
  absl::Status Run();

  int64_t ColumnInt(int column) const;
  std::string ColumnText(int column) const;  // text or blob

 private:
  SqliteDb* db_;
  sqlite3_stmt* stmt_;
  int next_bind_ = 1;
  int bind_error_ = 0;
};

class SqliteDb {
 public:
  // read_only: a second connection of this process.
  static absl::StatusOr<std::unique_ptr<SqliteDb>> Open(const std::string& path, bool read_only);
  ~SqliteDb();
  SqliteDb(const SqliteDb&) = delete;
  SqliteDb& operator=(const SqliteDb&) = delete;

  absl::Status Exec(const char* sql);
  // `sql` must be a string that lives as long as the connection and is prepared once (keyed by
  // text).
  absl::StatusOr<Query> Prepare(absl::string_view sql);
  int64_t LastInsertRowid() const;
  bool InTransaction() const;

  // Whether an error since the last call came from the disk (full, failing), not from us.
  bool TakeStorageFailed() { return std::exchange(storage_failed_, false); }

 private:
  friend class Query;
  SqliteDb(std::string path, sqlite3* db) : path_(std::move(path)), db_(db) {}
  absl::Status Error(int code, absl::string_view what);

  const std::string path_;
  sqlite3* db_;
  std::map<std::string, sqlite3_stmt*, std::less<>> statements_;
  bool storage_failed_ = false;
};

}  // namespace soup::daemon

#endif  // SOUP_DAEMON_CONTROL_SQLITE_DB_H_
