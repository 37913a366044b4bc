// The names that authors derive from, from lockstep/extend.h alone. headers_test.sh compiles this file and runs nothing
// of it.
#include "lockstep/extend.h"

using lockstep::ClusterResolver;
using lockstep::HostTopology;
using lockstep::join;
using lockstep::Lanes;
using lockstep::NewVariable;
using lockstep::OneCopyPlacement;
using lockstep::Placement;
using lockstep::Reducer;
using lockstep::RuleInput;
using lockstep::SlotSpec;
using lockstep::Strategy;
using lockstep::StrategySetup;
using lockstep::Synchronization;
using lockstep::Topology;
using lockstep::TreeReducer;
using lockstep::UpdateRule;
using lockstep::VariableCopy;
using lockstep::Windows;
using lockstep::World;
using lockstep::data::RecordFiles;
using lockstep::data::Source;
using lockstep::data::Stage;
using lockstep::data::StreamReader;
using lockstep::data::StreamSource;
