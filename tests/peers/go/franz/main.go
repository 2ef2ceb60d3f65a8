// What an application does with franz-go.
package main

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"odradek.io/tests/peers/go/task"
)

var codecs = map[string]kgo.CompressionCodec{
	"none":   kgo.NoCompression(),
	"gzip":   kgo.GzipCompression(),
	"snappy": kgo.SnappyCompression(),
	"lz4":    kgo.Lz4Compression(),
	"zstd":   kgo.ZstdCompression(),
}

func main() { task.Run(roundtrip, exchange, refusals, transact) }

func roundtrip(t task.Task) task.Answer {
	until, end := context.WithTimeout(context.Background(), 2*task.Patience)
	defer end()
	var answer task.Answer
	admin := kadm.NewClient(client(t))
	defer admin.Close()
	admin.SetTimeoutMillis(int32(task.Patience.Milliseconds()))
	task.Must(admin.CreateTopic(until, t.Partitions, t.Replicas, nil, t.Topic))
	task.Eventually("the topic is listed", func() bool { return isListed(until, admin, t.Topic) })
	task.Eventually("the leaders answer", func() bool { return areLed(until, admin, t) })

	half := len(t.Records) / 2
	write(until, t, t.Records[:half], kgo.DisableIdempotentWrite())
	write(until, t, t.Records[half:])
	reader := consumer(t)
	answer.Read = read(until, reader, t)
	reader.Close()
	answer.Group, answer.Shares = readByGroup(until, admin, t)
	answer.Committed = task.Offsets{}
	task.Must(admin.FetchOffsets(until, t.Group())).Each(func(one kadm.OffsetResponse) {
		answer.Committed[one.Partition] = one.At
	})
	groups := task.Must(admin.DescribeGroups(until, t.Group()))
	answer.State = groups[t.Group()].State

	answer.Starts = offsets(admin.ListStartOffsets(until, t.Topic))
	answer.Ends = offsets(admin.ListEndOffsets(until, t.Topic))
	answer.Found = offsets(admin.ListOffsetsAfterMilli(until, t.Time, t.Topic))

	answer.Retention = retention(until, admin, t.Topic)

	deleted := kadm.Offsets{}
	deleted.AddOffset(t.Topic, 0, t.Keep, -1)
	task.Check(task.Must(admin.DeleteRecords(until, deleted)).Error())
	answer.Kept = offsets(admin.ListStartOffsets(until, t.Topic))

	task.Must(admin.DeleteGroup(until, t.Group()))
	if _, left := task.Must(admin.ListGroups(until))[t.Group()]; left {
		answer.Groups = 1
	}
	task.Must(admin.DeleteTopic(until, t.Topic))
	task.Eventually("the topic is gone", func() bool { return !isListed(until, admin, t.Topic) })
	return answer
}

func client(t task.Task, options ...kgo.Opt) *kgo.Client {
	// By default a topic is given up that four answers do not tell of.
	always := []kgo.Opt{kgo.SeedBrokers(t.Bootstrap...), kgo.UnknownTopicRetries(-1)}
	return task.Must(kgo.NewClient(append(options, always...)...))
}

// --- records --------------------------------------------------------------------------------

func write(until context.Context, t task.Task, records []task.Record, options ...kgo.Opt) {
	producer := client(t, append(options,
		kgo.ProducerBatchCompression(codecs[t.Codec]),
		kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
	defer producer.Close()
	batch := []*kgo.Record{}
	for _, one := range records {
		headers := []kgo.RecordHeader{}
		for _, header := range one.Headers {
			headers = append(headers, kgo.RecordHeader{Key: header[0], Value: []byte(header[1])})
		}
		batch = append(batch, &kgo.Record{
			Topic: t.Topic, Partition: one.Partition, Timestamp: time.UnixMilli(one.Timestamp),
			Key: task.Bytes(one.Key), Value: task.Bytes(one.Value), Headers: headers,
		})
	}
	task.Check(producer.ProduceSync(until, batch...).FirstErr())
}

func record(found *kgo.Record) task.Record {
	headers := [][2]string{}
	for _, header := range found.Headers {
		headers = append(headers, [2]string{header.Key, string(header.Value)})
	}
	return task.Record{
		Partition: found.Partition, Offset: found.Offset, Timestamp: found.Timestamp.UnixMilli(),
		Key: task.Text(found.Key), Value: task.Text(found.Value), Headers: headers,
	}
}

func consumer(t task.Task, options ...kgo.Opt) *kgo.Client {
	start := kgo.NewOffset().AtStart()
	return client(t, append(options, kgo.ConsumeTopics(t.Topic), kgo.ConsumeResetOffset(start))...)
}

// read takes as many records as were written.
func read(until context.Context, consumer *kgo.Client, t task.Task) []task.Record {
	found := []task.Record{}
	for len(found) < len(t.Records) {
		fetched := consumer.PollFetches(until)
		task.Check(fetched.Err())
		fetched.EachRecord(func(one *kgo.Record) { found = append(found, record(one)) })
	}
	return found
}

// readByGroup lets one member read and commit all, and then another one join.
func readByGroup(
	until context.Context, admin *kadm.Client, t task.Task,
) ([]task.Record, task.Shares) {
	member := []kgo.Opt{
		kgo.ConsumerGroup(t.Group()), kgo.DisableAutoCommit(),
		kgo.HeartbeatInterval(300 * time.Millisecond),
	}
	first := consumer(t, member...)
	defer first.Close()
	found := read(until, first, t)
	task.Check(first.CommitUncommittedOffsets(until))
	second := consumer(t, member...)
	defer second.Close()
	var shared task.Shares
	task.Eventually("each member has a partition", func() bool {
		shared = shares(until, admin, t)
		return shared.AreFair(2)
	})
	return found, shared
}

// --- questions ------------------------------------------------------------------------------

func isListed(until context.Context, admin *kadm.Client, topic string) bool {
	return task.Must(admin.ListTopics(until)).Has(topic)
}

// areLed says whether every partition's leader knows that it is one.
func areLed(until context.Context, admin *kadm.Client, t task.Task) bool {
	listed, err := admin.ListEndOffsets(until, t.Topic)
	return err == nil && listed.Error() == nil && len(listed[t.Topic]) == int(t.Partitions)
}

func offsets(listed kadm.ListedOffsets, err error) task.Offsets {
	task.Check(err)
	task.Check(listed.Error())
	found := task.Offsets{}
	listed.Each(func(one kadm.ListedOffset) { found[one.Partition] = one.Offset })
	return found
}

func shares(until context.Context, admin *kadm.Client, t task.Task) task.Shares {
	found := task.Shares{}
	for _, member := range task.Must(admin.DescribeGroups(until, t.Group()))[t.Group()].Members {
		share := []int32{}
		if assigned, isConsumer := member.Assigned.AsConsumer(); isConsumer {
			for _, topic := range assigned.Topics {
				share = append(share, topic.Partitions...)
			}
		}
		found = append(found, share)
	}
	return found
}

// retention is what the topic's setting is after it was changed.
func retention(until context.Context, admin *kadm.Client, topic string) string {
	forever := "-1"
	change := kadm.AlterConfig{Op: kadm.SetConfig, Name: "retention.ms", Value: &forever}
	altered := task.Must(admin.AlterTopicConfigs(until, []kadm.AlterConfig{change}, topic))
	task.Must(altered.On(topic, func(one *kadm.AlterConfigsResponse) error { return one.Err }))
	described := task.Must(admin.DescribeTopicConfigs(until, topic))
	for _, one := range task.Must(described.On(topic, nil)).Configs {
		if one.Key == "retention.ms" {
			return one.MaybeValue()
		}
	}
	return ""
}
