// What the chief's copy of a strategy and those of the servers tell each other: which of its state has changed.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/core/bytes.h"
#include "lockstep/server/remote/catalog.h"
#include "lockstep/strategy/state_items.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep::internal::inline server {

/// The state of one copy: values of variables, slots, counts and settings of optimizers, and rows of tables. Each copy
/// knows by digests what it has told the others and what they have told it. A server tells of a variable that is cut,
/// and of its slots, what it has of them; the chief tells all. Calls are made by a task of the run, which passes the
/// strategy's gate.
class SharedState {
 public:
  /// That of this server, or, with -1, of the chief.
  ///
  /// Rows that have changed are found by positions of a table, which are numbers of steps that count. The run begins
  /// behind `counted` of them: no row has a later position then, wherever it was restored from.
  SharedState(Strategy& strategy, const Catalog& catalog, int32_t server, int64_t counted)
      : strategy_(strategy), catalog_(catalog), server_(server), counted_(counted) {}

  /// All that has changed since the last call of this or of take(), as bytes. The first time: everything.
  std::string changes();
  /// Takes what another copy has changed: that of server `of`, or, with -1, of the chief. A PeerError (LS-PEER-MESSAGE)
  /// where the bytes are none.
  void take(std::string_view bytes, int32_t of);

 private:
  using Key = std::pair<StateItem::Kind, std::string>;
  struct Table {
    int64_t position = -1;  // rows that changed at it or before are known to the others
    bool is_new = true;
  };

  /// Of each variable that is cut, and of its slots: the variable, by the item's key.
  std::map<Key, const VariableState*> cut_items() const;
  void put_tables(std::string& bytes);
  void take_tables(MessageReader& from);

  Strategy& strategy_;
  const Catalog& catalog_;
  const int32_t server_;
  const int64_t counted_;
  std::map<Key, std::string> digests_;
  std::vector<Table> tables_;
};

}  // namespace lockstep::internal::server
