"""One worker of Grain or LitData: reads some steps from a saved state on, saves its state, and prints its batches' ids."""
import argparse
import json
import os
import pickle

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("library", choices=["grain", "grain-elastic", "grain-processes", "litdata", "litdata-processes"])
parser.add_argument("--rank", type=int, required=True)
parser.add_argument("--world", type=int, required=True)
parser.add_argument("--samples", type=int, required=True)
parser.add_argument("--batch", type=int, required=True, help="of all workers together")
parser.add_argument("--steps", type=int, default=0, help="0: to the end of the epoch")
parser.add_argument("--load", help="a state to continue from")
parser.add_argument("--save", help="where the state goes")
parser.add_argument("--folder", required=True, help="of LitData's chunks, which are made where they are not there")


def one(i):
    return i


def of_grain(a):
    from absl import flags
    import grain

    flags.FLAGS.mark_as_parsed()
    dataset = grain.MapDataset.range(a.samples).seed(1).shuffle()
    if a.library == "grain-elastic":
        from grain import experimental, sharding
        iterator = iter(experimental.ElasticIterator(dataset, a.batch, sharding.ShardOptions(a.rank, a.world)))
    elif a.library == "grain-processes":
        dataset = dataset.batch(a.batch).to_iter_dataset()
        iterator = iter(dataset.mp_prefetch(grain.MultiprocessingOptions(num_workers=a.world)))
    else:
        iterator = iter(dataset[a.rank::a.world].batch(a.batch // a.world).to_iter_dataset())
    if a.load:
        with open(a.load, "rb") as file:
            iterator.set_state(pickle.load(file))
    for ids in iterator:
        yield [int(i) for i in ids], iterator.get_state


def of_litdata(a):
    import litdata

    processes = a.library == "litdata-processes"
    if not processes:
        os.environ.update(WORLD_SIZE=str(a.world), GLOBAL_RANK=str(a.rank))
    dataset = litdata.StreamingDataset(a.folder, shuffle=True, seed=1, drop_last=False)
    loader = litdata.StreamingDataLoader(dataset, batch_size=a.batch if processes else a.batch // a.world,
                                         num_workers=a.world if processes else 1)
    if a.load:
        with open(a.load, "rb") as file:
            loader.load_state_dict(pickle.load(file))
    for ids in loader:
        yield [int(i) for i in ids], loader.state_dict


def main():
    a = parser.parse_args()
    if a.library.startswith("litdata") and not os.path.exists(a.folder):
        import litdata
        litdata.optimize(fn=one, inputs=list(range(a.samples)), output_dir=a.folder, chunk_size=100, num_workers=1)
    batches = []
    for ids, state in (of_grain if a.library.startswith("grain") else of_litdata)(a):
        batches.append(ids)
        if len(batches) == a.steps:
            break
    if a.save:
        with open(a.save, "wb") as file:
            pickle.dump(state(), file)
    print("ids " + json.dumps(batches), flush=True)


if __name__ == "__main__":
    main()
