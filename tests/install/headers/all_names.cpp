// The public names, from lockstep/lockstep.h alone. headers_test.sh compiles this file and runs nothing of it.
#include "lockstep/lockstep.h"

// The loop.
using lockstep::Batch;
using lockstep::CentralStorageStrategy;
using lockstep::Checkpoint;
using lockstep::CheckpointManager;
using lockstep::make_strategy;
using lockstep::MirroredStrategy;
using lockstep::MultiWorkerMirroredStrategy;
using lockstep::OneDeviceStrategy;
using lockstep::Optimizer;
using lockstep::PerReplica;
using lockstep::Reduction;
using lockstep::ReplicaContext;
using lockstep::Replicated;
using lockstep::Strategy;
using lockstep::Variable;

// What these are given, and what they give.
using lockstep::CheckpointManagerOptions;
using lockstep::Copies;
using lockstep::DistributeOptions;
using lockstep::MirroredOptions;
using lockstep::ModuleOptions;
using lockstep::MultiWorkerMirroredOptions;
using lockstep::OneDeviceOptions;
using lockstep::ParameterGroup;
using lockstep::Remainder;
using lockstep::ReplicaId;
using lockstep::RestoreInfo;
using lockstep::StepInfo;
using lockstep::StepOptions;
using lockstep::StrategyOptions;
using lockstep::Tuning;
using lockstep::VariableAggregation;
using lockstep::VariableOptions;
using lockstep::VariableSynchronization;

// Errors.
using lockstep::ClusterError;
using lockstep::DataError;
using lockstep::DivergenceError;
using lockstep::Error;
using lockstep::InternalError;
using lockstep::PeerError;
using lockstep::ReplicaError;
using lockstep::UsageError;

// Rates, rules, metrics, and the cluster.
using lockstep::ClusterResolver;
using lockstep::ClusterSpec;
using lockstep::LearningRateBridge;
using lockstep::resolve_cluster;
using lockstep::RuleInput;
using lockstep::Schedule;
using lockstep::SlotSpec;
using lockstep::UpdateRule;
using lockstep::UpdateRuleOptions;
using lockstep::metrics::Mean;
using lockstep::rules::lion;
using lockstep::schedules::cosine;

// Data.
using lockstep::data::Dataset;
using lockstep::data::DistributedDataset;
using lockstep::data::Stream;

// The four decisions.
using lockstep::Placement;
using lockstep::Reducer;
using lockstep::StrategySetup;
using lockstep::Synchronization;
using lockstep::Topology;
using lockstep::World;
