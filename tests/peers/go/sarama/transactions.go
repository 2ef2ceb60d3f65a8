//go:build !old

package main

import (
	"errors"

	"github.com/IBM/sarama"

	"odradek.io/tests/peers/go/task"
)

var errorNames = map[sarama.KError]string{
	sarama.ErrInvalidProducerEpoch: "INVALID_PRODUCER_EPOCH",
	sarama.ErrProducerFenced:       "PRODUCER_FENCED",
}

func transact(t task.Transactions) task.TransactionsOutcome {
	var outcome task.TransactionsOutcome
	lateSettings := transactional(t, "late")
	lateSettings.Producer.Transaction.Timeout = t.Late()
	late := task.Must(sarama.NewSyncProducer(t.Bootstrap, lateSettings))
	task.Check(late.BeginTxn())
	send(late, t.Name("late"), []task.Message{{Text: "late"}})

	endTransactions(t)
	outcome.ReadCommitted = readUpTo(t, "ends", t.Partitions, sarama.ReadCommitted, t.Last())
	outcome.ReadUncommitted = readUpTo(t, "ends", t.Partitions, sarama.ReadUncommitted, t.Last())
	outcome.Before, outcome.After = copyAll(t)

	zombie := begun(t, "fenced")
	send(zombie, t.Name("fenced"), []task.Message{{Text: "zombie"}})
	heir := begun(t, "fenced")
	send(heir, t.Name("fenced"), []task.Message{{Text: "heir"}})
	task.Check(heir.CommitTxn())
	outcome.Fenced = errorName(zombie.CommitTxn())

	plain := task.Must(sarama.NewSyncProducer(t.Bootstrap, settings()))
	send(plain, t.Name("late"), []task.Message{{Text: "after"}})
	outcome.LateRead = readUpTo(t, "late", 1, sarama.ReadCommitted, []string{"after"})
	outcome.Late = errorName(late.CommitTxn())
	for _, one := range []sarama.SyncProducer{heir, plain} {
		task.Check(one.Close())
	}
	return outcome
}

func transactional(t task.Transactions, name string) *sarama.Config {
	config := settings()
	config.Net.MaxOpenRequests = 1
	config.Producer.Idempotent = true
	config.Producer.Transaction.ID = t.Name(name)
	return config
}

// begun gives a producer with a transaction. What it is told while a transaction of its id is being
// aborted goes to the application.
func begun(t task.Transactions, name string) sarama.SyncProducer {
	var producer sarama.SyncProducer
	task.Eventually("the id is free", func() bool {
		var err error
		producer, err = sarama.NewSyncProducer(t.Bootstrap, transactional(t, name))
		if !errors.Is(err, sarama.ErrConcurrentTransactions) {
			task.Check(err)
		}
		return err == nil
	})
	task.Check(producer.BeginTxn())
	return producer
}

func send(producer sarama.SyncProducer, topic string, values []task.Message) {
	messages := []*sarama.ProducerMessage{}
	for _, one := range values {
		messages = append(messages, &sarama.ProducerMessage{
			Topic: topic, Partition: one.Partition, Value: sarama.StringEncoder(one.Text),
		})
	}
	task.Check(producer.SendMessages(messages))
}

func endTransactions(t task.Transactions) {
	producer := task.Must(sarama.NewSyncProducer(t.Bootstrap, transactional(t, "ends")))
	for _, one := range t.Ends() {
		task.Check(producer.BeginTxn())
		send(producer, t.Name("ends"), one.Values)
		if one.Commit {
			task.Check(producer.CommitTxn())
		} else {
			task.Check(producer.AbortTxn())
		}
	}
	task.Check(producer.Close())
}

func readUpTo(
	t task.Transactions, topic string, partitions int32, isolation sarama.IsolationLevel,
	last []string,
) []string {
	isLast := func(found []task.Message) bool { return task.Have(found, last) }
	return task.Texts(consume(t, topic, partitions, isolation, isLast))
}

// consume takes values of all partitions until they are enough.
func consume(
	t task.Transactions, topic string, partitions int32, isolation sarama.IsolationLevel,
	enough func([]task.Message) bool,
) []task.Message {
	config := settings()
	config.Consumer.IsolationLevel = isolation
	consumer := task.Must(sarama.NewConsumer(t.Bootstrap, config))
	defer consumer.Close()
	merged := make(chan task.Message, config.ChannelBufferSize)
	for partition := int32(0); partition < partitions; partition++ {
		part := task.Must(consumer.ConsumePartition(t.Name(topic), partition, sarama.OffsetOldest))
		defer part.AsyncClose()
		go func() {
			for message := range part.Messages() {
				merged <- task.Message{Text: string(message.Value), Partition: message.Partition}
			}
		}()
	}
	found := []task.Message{}
	for !enough(found) {
		found = append(found, <-merged)
	}
	return found
}

// copyAll sends offsets in the transaction that it commits only: they wait in the client for the end.
func copyAll(t task.Transactions) (before, after task.Offsets) {
	isAll := func(found []task.Message) bool { return len(found) == t.SourceRecords }
	found := consume(t, "source", t.Partitions, sarama.ReadCommitted, isAll)
	ends := map[string][]*sarama.PartitionOffsetMetadata{}
	for partition := int32(0); partition < t.Partitions; partition++ {
		ends[t.Name("source")] = append(ends[t.Name("source")], &sarama.PartitionOffsetMetadata{
			Partition: partition, Offset: int64(t.SourceRecords) / int64(t.Partitions),
		})
	}
	admin := task.Must(sarama.NewClusterAdmin(t.Bootstrap, settings()))
	defer admin.Close()
	reader := task.Task{Topic: t.Name("source"), Partitions: t.Partitions}
	offsets := func() task.Offsets { return committed(admin, reader) }

	producer := begun(t, "copy")
	send(producer, t.Name("copies"), task.Copies(found, "no copy of "))
	task.Check(producer.AddOffsetsToTxn(ends, reader.Group()))
	task.Check(producer.AbortTxn())
	task.Check(producer.BeginTxn())
	send(producer, t.Name("copies"), task.Copies(found, "copy of "))
	before = offsets()
	task.Check(producer.AddOffsetsToTxn(ends, reader.Group()))
	task.Check(producer.CommitTxn())
	task.Eventually("offsets are committed", func() bool { return offsets().AreSet() })
	task.Check(producer.Close())
	return before, offsets()
}

func errorName(err error) string {
	var code sarama.KError
	if errors.As(err, &code) && errorNames[code] != "" {
		return errorNames[code]
	}
	task.Check(err)
	return ""
}
