package io.odradek.iceberg;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.iceberg.hadoop.HadoopTableOperations;
import org.apache.iceberg.io.FileIO;
import org.apache.iceberg.util.LockManagers;

/** Iceberg's operations on a table in a folder, which commit by {@link FencedFiles}. */
final class FencedTable extends HadoopTableOperations {
  private final java.nio.file.Path staging;

  FencedTable(Path location, FileIO io, Configuration conf, java.nio.file.Path staging) {
    super(location, io, conf, LockManagers.defaultLockManager());
    this.staging = staging;
  }

  @Override
  protected FileSystem getFileSystem(Path path, Configuration conf) {
    return new FencedFiles(super.getFileSystem(path, conf), staging);
  }
}
