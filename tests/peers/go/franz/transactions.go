package main

import (
	"context"
	"errors"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"odradek.io/tests/peers/go/task"
)

func transact(t task.Transactions) task.TransactionsOutcome {
	until, end := context.WithTimeout(context.Background(), 2*task.Patience)
	defer end()
	var outcome task.TransactionsOutcome
	late := transactional(t, "late", kgo.TransactionTimeout(t.Late()))
	task.Check(late.BeginTransaction())
	send(until, late, t.Name("late"), []task.Message{{Text: "late"}})

	endTransactions(until, t)
	committed, uncommitted := kgo.ReadCommitted(), kgo.ReadUncommitted()
	outcome.ReadCommitted = readUpTo(until, t, "ends", committed, t.Last())
	outcome.ReadUncommitted = readUpTo(until, t, "ends", uncommitted, t.Last())
	outcome.Before, outcome.After = copyAll(until, t)

	zombie := transactional(t, "fenced")
	task.Check(zombie.BeginTransaction())
	send(until, zombie, t.Name("fenced"), []task.Message{{Text: "zombie"}})
	heir := transactional(t, "fenced")
	// What it is told while the transaction is being aborted goes to the application.
	task.Eventually("the id is free", func() bool {
		_, _, err := heir.ProducerID(until)
		checkUnless(err, kerr.ConcurrentTransactions)
		return err == nil
	})
	task.Check(heir.BeginTransaction())
	send(until, heir, t.Name("fenced"), []task.Message{{Text: "heir"}})
	task.Check(heir.EndTransaction(until, kgo.TryCommit))
	outcome.Fenced = errorName(zombie.EndTransaction(until, kgo.TryCommit))

	plain := connected(t)
	send(until, plain, t.Name("late"), []task.Message{{Text: "after"}})
	outcome.LateRead = readUpTo(until, t, "late", committed, []string{"after"})
	outcome.Late = errorName(late.EndTransaction(until, kgo.TryCommit))
	for _, one := range []*kgo.Client{late, zombie, heir, plain} {
		one.Close()
	}
	return outcome
}

func connected(t task.Transactions, options ...kgo.Opt) *kgo.Client {
	return task.Must(kgo.NewClient(append(options,
		kgo.SeedBrokers(t.Bootstrap...), kgo.RecordPartitioner(kgo.ManualPartitioner()))...))
}

func transactional(t task.Transactions, name string, options ...kgo.Opt) *kgo.Client {
	return connected(t, append(options, kgo.TransactionalID(t.Name(name)))...)
}

func records(topic string, values []task.Message) []*kgo.Record {
	batch := []*kgo.Record{}
	for _, one := range values {
		batch = append(batch, &kgo.Record{
			Topic: topic, Partition: one.Partition, Value: []byte(one.Text),
		})
	}
	return batch
}

func send(until context.Context, producer *kgo.Client, topic string, values []task.Message) {
	task.Check(producer.ProduceSync(until, records(topic, values)...).FirstErr())
}

func endTransactions(until context.Context, t task.Transactions) {
	producer := transactional(t, "ends")
	defer producer.Close()
	for _, one := range t.Ends() {
		task.Check(producer.BeginTransaction())
		send(until, producer, t.Name("ends"), one.Values)
		task.Check(producer.EndTransaction(until, kgo.TransactionEndTry(one.Commit)))
	}
}

func readUpTo(
	until context.Context, t task.Transactions, topic string, isolation kgo.IsolationLevel,
	last []string,
) []string {
	consumer := connected(t, kgo.ConsumeTopics(t.Name(topic)), kgo.FetchIsolationLevel(isolation))
	defer consumer.Close()
	found := []task.Message{}
	for !task.Have(found, last) {
		found = append(found, polled(consumer.PollFetches(until))...)
	}
	return task.Texts(found)
}

func polled(fetched kgo.Fetches) []task.Message {
	task.Check(fetched.Err())
	found := []task.Message{}
	fetched.EachRecord(func(one *kgo.Record) {
		found = append(found, task.Message{Text: string(one.Value), Partition: one.Partition})
	})
	return found
}

// copyAll sends offsets in the transaction that it commits only: the session sends none before it
// aborts, and goes back to what is committed.
func copyAll(until context.Context, t task.Transactions) (before, after task.Offsets) {
	group := t.Name("group")
	session := task.Must(kgo.NewGroupTransactSession(
		kgo.SeedBrokers(t.Bootstrap...), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.TransactionalID(t.Name("copy")), kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(t.Name("source")), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.RequireStableFetchOffsets(),
	))
	defer session.Close()
	admin := kadm.NewClient(connected(t))
	defer admin.Close()
	offsets := func() task.Offsets {
		found := task.Offsets{}
		for partition := int32(0); partition < t.Partitions; partition++ {
			found[partition] = -1
		}
		task.Must(admin.FetchOffsets(until, group)).Each(func(one kadm.OffsetResponse) {
			found[one.Partition] = one.At
		})
		return found
	}
	for _, commit := range []bool{false, true} {
		found := []task.Message{}
		for len(found) < t.SourceRecords {
			found = append(found, polled(session.PollFetches(until))...)
		}
		task.Check(session.Begin())
		name := "copy of "
		if !commit {
			name = "no copy of "
		}
		batch := records(t.Name("copies"), task.Copies(found, name))
		task.Check(session.ProduceSync(until, batch...).FirstErr())
		before = offsets()
		if committed := task.Must(session.End(until, kgo.TransactionEndTry(commit))); committed != commit {
			panic("the transaction ended otherwise")
		}
	}
	task.Eventually("offsets are committed", func() bool { return offsets().AreSet() })
	return before, offsets()
}

func checkUnless(err, expected error) {
	if !errors.Is(err, expected) {
		task.Check(err)
	}
}

func errorName(err error) string {
	var code *kerr.Error
	if errors.As(err, &code) {
		return code.Message
	}
	task.Check(err)
	return ""
}
