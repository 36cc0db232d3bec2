#include "daemon/control/sqlite_db.h"

#include <sqlite3.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/file_system.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"

namespace soup::daemon {
namespace {

// The least that any write needs.
constexpr int64_t kPageBytes = 4096;

bool NoRoom(int error) { return error == ENOSPC || error == EDQUOT || error == EFBIG; }

// Why SQLite could not write, where it was for want of room; 0: for another reason. What it calls
// the system's error may be that of a later call; the files remember their own.
int ErrnoOfNoRoom(sqlite3* db) {
  if (db == nullptr) return 0;
  if (const int error = sqlite3_system_errno(db); NoRoom(error)) return error;
  for (const int which : {SQLITE_FCNTL_FILE_POINTER, SQLITE_FCNTL_JOURNAL_POINTER}) {
    sqlite3_file* file = nullptr;
    int error = 0;
    if (sqlite3_file_control(db, "main", which, &file) == SQLITE_OK && file != nullptr &&
        file->pMethods != nullptr &&
        file->pMethods->xFileControl(file, SQLITE_FCNTL_LAST_ERRNO, &error) == SQLITE_OK &&
        NoRoom(error)) {
      return error;
    }
  }
  return 0;
}

}  // namespace

Query::Query(Query&& other) noexcept
    : db_(other.db_),
      stmt_(std::exchange(other.stmt_, nullptr)),
      next_bind_(other.next_bind_),
      bind_error_(other.bind_error_) {}

Query::~Query() {
  if (stmt_ == nullptr) return;
  sqlite3_reset(stmt_);
  sqlite3_clear_bindings(stmt_);
}

Query& Query::Int(int64_t value) {
  bind_error_ |= sqlite3_bind_int64(stmt_, next_bind_++, value);
  return *this;
}

Query& Query::Text(absl::string_view value) {
  bind_error_ |= sqlite3_bind_text(stmt_, next_bind_++, value.data(),
                                   static_cast<int>(value.size()), SQLITE_TRANSIENT);
  return *this;
}

Query& Query::Blob(absl::string_view value) {
  bind_error_ |= value.empty()
                     ? sqlite3_bind_zeroblob(stmt_, next_bind_++, 0)
                     : sqlite3_bind_blob(stmt_, next_bind_++, value.data(),
                                         static_cast<int>(value.size()), SQLITE_TRANSIENT);
  return *this;
}

absl::StatusOr<bool> Query::Step() {
  if (bind_error_ != 0) return db_->Error(bind_error_, "bind");
  const int rc = sqlite3_step(stmt_);
  if (rc == SQLITE_ROW) return true;
  if (rc == SQLITE_DONE) return false;
  return db_->Error(rc, sqlite3_sql(stmt_));
}

absl::Status Query::Run() {
  SOUP_ASSIGN_OR_RETURN(const bool row, Step());
  return row ? absl::InternalError(absl::StrCat("unexpected row from ", sqlite3_sql(stmt_)))
             : absl::OkStatus();
}

int64_t Query::ColumnInt(int column) const { return sqlite3_column_int64(stmt_, column); }

std::string Query::ColumnText(int column) const {
  const void* data = sqlite3_column_blob(stmt_, column);
  if (data == nullptr) return "";
  return std::string(static_cast<const char*>(data),
                     static_cast<size_t>(sqlite3_column_bytes(stmt_, column)));
}

absl::StatusOr<std::unique_ptr<SqliteDb>> SqliteDb::Open(const std::string& path, bool read_only) {
  sqlite3* raw = nullptr;
  const int flags =
      (read_only ? SQLITE_OPEN_READONLY : SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE) |
      SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE;
  const int rc = sqlite3_open_v2(path.c_str(), &raw, flags, nullptr);
  std::unique_ptr<SqliteDb> db(new SqliteDb(path, raw));
  if (rc != SQLITE_OK) return db->Error(rc, "open");
  sqlite3_busy_timeout(raw, 5000);
  return db;
}

SqliteDb::~SqliteDb() {
  for (auto& [sql, stmt] : statements_) sqlite3_finalize(stmt);
  sqlite3_close_v2(db_);
}

absl::Status SqliteDb::Exec(const char* sql) {
  const int rc = sqlite3_exec(db_, sql, nullptr, nullptr, nullptr);
  return rc == SQLITE_OK ? absl::OkStatus() : Error(rc, sql);
}

absl::StatusOr<Query> SqliteDb::Prepare(absl::string_view sql) {
  auto it = statements_.find(sql);
  if (it == statements_.end()) {
    sqlite3_stmt* stmt = nullptr;
    const int rc = sqlite3_prepare_v3(db_, sql.data(), static_cast<int>(sql.size()),
                                      SQLITE_PREPARE_PERSISTENT, &stmt, nullptr);
    if (rc != SQLITE_OK) return Error(rc, sql);
    it = statements_.emplace(std::string(sql), stmt).first;
  }
  return Query(this, it->second);
}

int64_t SqliteDb::LastInsertRowid() const { return sqlite3_last_insert_rowid(db_); }
bool SqliteDb::InTransaction() const { return sqlite3_get_autocommit(db_) == 0; }

absl::Status SqliteDb::Error(int code, absl::string_view what) {
  const int primary = code & 0xff;
  const std::string words =
      absl::StrCat(db_ == nullptr ? sqlite3_errstr(code) : sqlite3_errmsg(db_), " (", what, ")");
  switch (primary) {
    case SQLITE_FULL:
      storage_failed_ = true;
      return engine::ErrnoStatus(ENOSPC, "write the job store", path_, kPageBytes);
    case SQLITE_IOERR:
    case SQLITE_CANTOPEN:
    case SQLITE_READONLY:
      storage_failed_ = true;
      if (const int error = ErrnoOfNoRoom(db_); error != 0) {
        return engine::ErrnoStatus(error, "write the job store", path_, kPageBytes);
      }
      return absl::Status(primary == SQLITE_IOERR ? absl::StatusCode::kDataLoss
                                                  : absl::StatusCode::kPermissionDenied,
                          absl::StrCat("job store ", path_, ": ", words));
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      storage_failed_ = true;
      return absl::DataLossError(absl::StrCat("job store ", path_, " is damaged: ", words,
                                              ". Move it away to start empty, or restore a copy"));
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return absl::UnavailableError(absl::StrCat("job store ", path_, ": ", words));
    default:
      return absl::InternalError(absl::StrCat("job store ", path_, ": ", words));
  }
}

}  // namespace soup::daemon
