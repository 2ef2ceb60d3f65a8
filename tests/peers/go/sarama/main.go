// What an application does with sarama: built with IBM's release and, by old-sarama.mod, with Shopify's.
package main

import (
	"context"
	"time"

	"github.com/IBM/sarama"

	"odradek.io/tests/peers/go/task"
)

var codecs = map[string]sarama.CompressionCodec{
	"none":   sarama.CompressionNone,
	"gzip":   sarama.CompressionGZIP,
	"snappy": sarama.CompressionSnappy,
	"lz4":    sarama.CompressionLZ4,
	"zstd":   sarama.CompressionZSTD,
}

func main() { task.Run(roundtrip, exchange, refusals, transact) }

func settings() *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.V2_8_0_0
	// By default brokers have three seconds to make a topic, and a second to know of it.
	config.Admin.Timeout = task.Patience
	config.Net.ReadTimeout = task.Patience + time.Minute
	config.Metadata.Retry.Max = 100
	config.Consumer.Group.Session.Timeout = time.Minute
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	// What waits for records shares a connection with commits, which are answered after it.
	config.Consumer.MaxWaitTime = 50 * time.Millisecond
	config.Consumer.Group.Heartbeat.Interval = 300 * time.Millisecond
	config.Producer.Return.Successes = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Partitioner = sarama.NewManualPartitioner
	return config
}

func roundtrip(t task.Task) task.Answer {
	var answer task.Answer
	admin := task.Must(sarama.NewClusterAdmin(t.Bootstrap, settings()))
	defer admin.Close()
	detail := sarama.TopicDetail{NumPartitions: t.Partitions, ReplicationFactor: t.Replicas}
	task.Check(admin.CreateTopic(t.Topic, &detail, false))
	task.Eventually("the topic is listed", func() bool { return isListed(admin, t.Topic) })
	client := task.Must(sarama.NewClient(t.Bootstrap, settings()))
	defer client.Close()
	task.Eventually("the leaders answer", func() bool { return areLed(client, t) })

	half := len(t.Records) / 2
	write(t, t.Records[:half], false)
	write(t, t.Records[half:], true)
	answer.Read = read(client, t)
	answer.Group, answer.Shares = readByGroup(admin, t)
	answer.Committed = committed(admin, t)
	groups := task.Must(admin.DescribeConsumerGroups([]string{t.Group()}))
	answer.State = groups[0].State

	answer.Starts = offsets(client, t, sarama.OffsetOldest)
	answer.Ends = offsets(client, t, sarama.OffsetNewest)
	answer.Found = offsets(client, t, t.Time)

	forever := "-1"
	change := map[string]*string{"retention.ms": &forever}
	task.Check(admin.AlterConfig(sarama.TopicResource, t.Topic, change, false))
	answer.Retention = retention(admin, t.Topic)

	task.Check(admin.DeleteRecords(t.Topic, map[int32]int64{0: t.Keep}))
	answer.Kept = offsets(client, t, sarama.OffsetOldest)

	task.Check(admin.DeleteConsumerGroup(t.Group()))
	if _, left := task.Must(admin.ListConsumerGroups())[t.Group()]; left {
		answer.Groups = 1
	}
	task.Check(admin.DeleteTopic(t.Topic))
	task.Eventually("the topic is gone", func() bool { return !isListed(admin, t.Topic) })
	return answer
}

// --- records --------------------------------------------------------------------------------

func encoder(text *string) sarama.Encoder {
	if text == nil {
		return nil
	}
	return sarama.StringEncoder(*text)
}

func write(t task.Task, records []task.Record, idempotent bool) {
	config := settings()
	config.Producer.Compression = codecs[t.Codec]
	if idempotent {
		config.Producer.Idempotent = true
		config.Net.MaxOpenRequests = 1
	}
	producer := task.Must(sarama.NewSyncProducer(t.Bootstrap, config))
	messages := []*sarama.ProducerMessage{}
	for _, one := range records {
		headers := []sarama.RecordHeader{}
		for _, header := range one.Headers {
			headers = append(headers,
				sarama.RecordHeader{Key: []byte(header[0]), Value: []byte(header[1])})
		}
		messages = append(messages, &sarama.ProducerMessage{
			Topic: t.Topic, Partition: one.Partition, Timestamp: time.UnixMilli(one.Timestamp),
			Key: encoder(one.Key), Value: encoder(one.Value), Headers: headers,
		})
	}
	task.Check(producer.SendMessages(messages))
	task.Check(producer.Close())
}

func record(message *sarama.ConsumerMessage) task.Record {
	headers := [][2]string{}
	for _, header := range message.Headers {
		headers = append(headers, [2]string{string(header.Key), string(header.Value)})
	}
	return task.Record{
		Partition: message.Partition, Offset: message.Offset,
		Timestamp: message.Timestamp.UnixMilli(),
		Key:       task.Text(message.Key), Value: task.Text(message.Value), Headers: headers,
	}
}

func read(client sarama.Client, t task.Task) []task.Record {
	found := []task.Record{}
	consumer := task.Must(sarama.NewConsumerFromClient(client))
	for partition, end := range offsets(client, t, sarama.OffsetNewest) {
		part := task.Must(consumer.ConsumePartition(t.Topic, partition, sarama.OffsetOldest))
		for next := int64(0); next < end; {
			message := <-part.Messages()
			found = append(found, record(message))
			next = message.Offset + 1
		}
		task.Check(part.Close())
	}
	return found
}

// member takes what its group gives it, and commits that at once, or at its end.
type member struct {
	found   chan task.Record
	commits bool
}

func (m member) Setup(sarama.ConsumerGroupSession) error { return nil }

func (m member) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (m member) ConsumeClaim(
	session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim,
) error {
	for message := range claim.Messages() {
		session.MarkMessage(message, "")
		if m.commits {
			session.Commit()
		}
		m.found <- record(message)
	}
	return nil
}

// join has a member in the group until the function it gives is called.
func join(t task.Task, handler member) (leave func()) {
	group := task.Must(sarama.NewConsumerGroup(t.Bootstrap, t.Group(), settings()))
	until, end := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for until.Err() == nil {
			err := group.Consume(until, []string{t.Topic}, handler)
			// A member that was just going to join again takes its leave for an error.
			if until.Err() == nil {
				task.Check(err)
			}
		}
	}()
	return func() {
		end()
		<-ended
		task.Check(group.Close())
	}
}

// readByGroup lets one member read and commit all, and then another one join.
func readByGroup(admin sarama.ClusterAdmin, t task.Task) ([]task.Record, task.Shares) {
	reader := member{make(chan task.Record), true}
	defer join(t, reader)()
	found := []task.Record{}
	for range t.Records {
		found = append(found, <-reader.found)
	}
	defer join(t, reader)()
	var shared task.Shares
	task.Eventually("each member has a partition", func() bool {
		shared = shares(admin, t)
		return shared.AreFair(2)
	})
	return found, shared
}

// --- questions ------------------------------------------------------------------------------

func isListed(admin sarama.ClusterAdmin, topic string) bool {
	_, found := task.Must(admin.ListTopics())[topic]
	return found
}

// areLed says whether every partition's leader knows that it is one. What is written before that is
// refused, and of several batches under way the first one may come last then.
func areLed(client sarama.Client, t task.Task) bool {
	for partition := int32(0); partition < t.Partitions; partition++ {
		if _, err := client.GetOffset(t.Topic, partition, sarama.OffsetNewest); err != nil {
			return false
		}
	}
	return true
}

func offsets(client sarama.Client, t task.Task, at int64) task.Offsets {
	found := task.Offsets{}
	for partition := int32(0); partition < t.Partitions; partition++ {
		found[partition] = task.Must(client.GetOffset(t.Topic, partition, at))
	}
	return found
}

func committed(admin sarama.ClusterAdmin, t task.Task) task.Offsets {
	all := map[string][]int32{t.Topic: {}}
	for partition := int32(0); partition < t.Partitions; partition++ {
		all[t.Topic] = append(all[t.Topic], partition)
	}
	answer := task.Must(admin.ListConsumerGroupOffsets(t.Group(), all))
	found := task.Offsets{}
	for partition, block := range answer.Blocks[t.Topic] {
		found[partition] = block.Offset
	}
	return found
}

func shares(admin sarama.ClusterAdmin, t task.Task) task.Shares {
	found := task.Shares{}
	groups := task.Must(admin.DescribeConsumerGroups([]string{t.Group()}))
	for _, member := range groups[0].Members {
		share := []int32{}
		if len(member.MemberAssignment) > 0 {
			share = task.Must(member.GetMemberAssignment()).Topics[t.Topic]
		}
		found = append(found, share)
	}
	return found
}

func retention(admin sarama.ClusterAdmin, topic string) string {
	entries := task.Must(admin.DescribeConfig(sarama.ConfigResource{
		Type: sarama.TopicResource, Name: topic, ConfigNames: []string{"retention.ms"},
	}))
	return entries[0].Value
}
