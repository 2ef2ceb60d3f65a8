//go:build old

package main

import "odradek.io/tests/peers/go/task"

// Shopify's release has no transactions.
var transact func(task.Transactions) task.TransactionsOutcome
